//! CPU and memory of a container, which can be resized while it runs (KEP-1287). PURE.

use std::fmt;

/// Requests and limits of one container (`resourceRequirements` in `kuberuntime_manager.go`); 0 = not set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Thousandths of a CPU.
    pub cpu_request: i64,
    /// Thousandths of a CPU.
    pub cpu_limit: i64,
    /// Bytes.
    pub memory_request: i64,
    /// Bytes.
    pub memory_limit: i64,
}

/// One of the two resources: they are resized separately, because one may grow while the other shrinks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// `memory`, which is resized first.
    Memory,
    /// `cpu`.
    Cpu,
}

impl Resource {
    /// The name in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Cpu => "cpu",
        }
    }
}

impl Sizes {
    /// Request and limit of one of the two.
    pub fn of(&self, resource: Resource) -> (i64, i64) {
        match resource {
            Resource::Memory => (self.memory_request, self.memory_limit),
            Resource::Cpu => (self.cpu_request, self.cpu_limit),
        }
    }

    /// A copy with one of the two from `there`.
    #[must_use]
    pub fn with(self, resource: Resource, there: &Self) -> Self {
        match resource {
            Resource::Memory => {
                Self { memory_request: there.memory_request, memory_limit: there.memory_limit, ..self }
            }
            Resource::Cpu => Self { cpu_request: there.cpu_request, cpu_limit: there.cpu_limit, ..self },
        }
    }

    /// The four numbers in the order of [`fmt::Display`].
    pub fn numbers(&self) -> [i64; 4] {
        [self.cpu_request, self.cpu_limit, self.memory_request, self.memory_limit]
    }

    /// From [`Sizes::numbers`].
    pub fn of_numbers([cpu_request, cpu_limit, memory_request, memory_limit]: [i64; 4]) -> Self {
        Self { cpu_request, cpu_limit, memory_request, memory_limit }
    }

    /// Parses the text of [`fmt::Display`].
    pub fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split(',').map(|number| number.parse::<i64>().ok().filter(|n| *n >= 0));
        let mut next = || numbers.next().flatten();
        let (cpu_request, cpu_limit) = (next()?, next()?);
        let sizes = Self { cpu_request, cpu_limit, memory_request: next()?, memory_limit: next()? };
        numbers.next().is_none().then_some(sizes)
    }
}

impl fmt::Display for Sizes {
    /// `100,200,67108864,134217728`: requests before limits, CPU before memory.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cpu_request, cpu_limit, memory_request, memory_limit } = self;
        write!(f, "{cpu_request},{cpu_limit},{memory_request},{memory_limit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_displayed_sizes_are_parsed() {
        let sizes = Sizes { cpu_request: 100, cpu_limit: 0, memory_request: i64::MAX, memory_limit: 1 };
        assert_eq!(sizes.to_string(), "100,0,9223372036854775807,1");
        assert_eq!(Sizes::parse(&sizes.to_string()), Some(sizes));
        for bad in ["", "1,2,3", "1,2,3,4,5", "1,2,3,-4", "1,2,3,x", "1,2,3,", "9223372036854775808,0,0,0"] {
            assert_eq!(Sizes::parse(bad), None, "{bad}");
        }
    }
}
