//! Texts of labels, each held once however many pods have it. PURE.

/// A text, by its number. Equal texts have equal numbers while they are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WordId(u32);

/// The texts. Their number and bytes are bounded by what holds them (`limits::NETWORK_POLICY_BYTES_MAX`).
#[derive(Debug, Default)]
pub(super) struct Words {
    held: Vec<Word>,
    /// Numbers of the held ones, by text.
    order: Vec<u32>,
    /// Numbers that are free again.
    free: Vec<u32>,
    text_bytes: usize,
}

#[derive(Debug)]
struct Word {
    text: Box<str>,
    holders: u32,
}

impl Words {
    fn place(&self, text: &str) -> Result<usize, usize> {
        self.order.binary_search_by(|number| (*self.held[*number as usize].text).cmp(text))
    }

    /// The number of the text, held once more.
    pub(super) fn hold(&mut self, text: &str) -> WordId {
        let place = match self.place(text) {
            Ok(place) => {
                let number = self.order[place];
                self.held[number as usize].holders += 1;
                return WordId(number);
            }
            Err(place) => place,
        };
        self.text_bytes += text.len();
        let word = Word { text: text.into(), holders: 1 };
        let number = if let Some(number) = self.free.pop() {
            self.held[number as usize] = word;
            number
        } else {
            self.held.push(word);
            u32::try_from(self.held.len() - 1).unwrap_or(u32::MAX)
        };
        self.order.insert(place, number);
        WordId(number)
    }

    /// Held once less; the last holder frees it.
    pub(super) fn release(&mut self, WordId(number): WordId) {
        let word = &mut self.held[number as usize];
        word.holders -= 1;
        if word.holders > 0 {
            return;
        }
        let text = std::mem::take(&mut word.text);
        self.text_bytes -= text.len();
        // The text is taken, so that its place is found by its number.
        self.order.retain(|other| *other != number);
        self.free.push(number);
    }

    /// Bytes of all that is held.
    pub(super) fn bytes(&self) -> usize {
        self.text_bytes
            + self.held.capacity() * size_of::<Word>()
            + (self.order.capacity() + self.free.capacity()) * 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_are_one_until_the_last_holder_releases_them() {
        let mut words = Words::default();
        let [b, a, again] = ["b", "a", "b"].map(|text| words.hold(text));
        assert!(b == again && a != b);
        let text = |words: &Words, WordId(number): WordId| words.held[number as usize].text.to_string();
        assert_eq!((text(&words, a), text(&words, b), words.text_bytes), ("a".to_owned(), "b".to_owned(), 2));
        words.release(b);
        assert_eq!((words.hold("b"), words.text_bytes), (b, 2));
        for _ in 0..2 {
            words.release(b);
        }
        assert_eq!((words.text_bytes, words.order.len()), (1, 1));
        let next = words.hold("c");
        assert_eq!((next, text(&words, next)), (b, "c".to_owned()));
        assert_eq!(words.held.len(), 2);
    }
}
