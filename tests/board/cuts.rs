//! The power is cut at random instants; tests/env/board.sh says what the disk loses. Then the board is booted again: every pod is as its
//! manifest wants it, no restart count has decreased, no state is damaged, and nothing of what was is left over.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::board::Board;
use crate::runtime;

/// A count younger than this at the cut may be taken back (docs/promises.md).
const YOUNG: Duration = Duration::from_secs(12);
/// Of the power cuts this part comes while the board still boots.
const CUTS_IN_A_BOOT_OF: u64 = 4;
/// Longest time from a board that is as wanted to its cut; from the emulator's start to a cut in a boot.
const WAIT_MS_MAX: u64 = 30_000;
const BOOT_MS_MAX: u64 = 60_000;
/// Time within which the agent has the disk of images written out that are first used, on a board as slow as this; and time within which
/// the kernel would not have done so by itself.
const WRITTEN_OUT_MS: u64 = 12_000;
const WRITE_BACK_MS: u64 = 25_000;

/// xorshift64*, so that a seed repeats a run's instants.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % bound
    }

    fn millis(&mut self, bound: u64) -> Duration {
        Duration::from_millis(self.below(bound))
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().filter(|text| !text.is_empty()).map(|text| text.parse().expect("a number"))
}

fn random() -> Random {
    let seed = number("SMOLET_BOARD_SEED").unwrap_or_else(|| {
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs()
    });
    println!("  SMOLET_BOARD_SEED={seed} repeats these instants");
    Random(seed | 1)
}

type Counts = BTreeMap<(String, String), u64>;

/// Restart counts that a cut may not take back, and those that are too young for it.
#[derive(Default)]
struct Floor {
    held: Counts,
    young: Option<(Instant, Counts)>,
}

impl Floor {
    fn cut(&mut self) {
        if let Some((_, counts)) = self.young.take_if(|(at, _)| at.elapsed() >= YOUNG) {
            self.held = counts;
        }
    }

    fn look(&mut self, board: &Board) {
        let now: Counts = board.containers().into_iter().map(|c| ((c.uid, c.name), c.restarts)).collect();
        for (container, count) in &self.held {
            // A pod that was changed is another one.
            if let Some(found) = now.get(container) {
                assert!(found >= count, "{container:?}: {found} restarts, {count} before the cut");
            }
        }
        self.young = Some((Instant::now(), now));
    }
}

/// Something for the cut to come in between of.
fn stir(board: &Board, random: &mut Random) -> String {
    let versioned = |version: u64| {
        format!(
            "terminationGracePeriodSeconds: 2, containers: [{{name: c, image: 'smolet.test/version:{version}'}}]"
        )
    };
    match random.below(5) {
        0 => {
            let version = 1 + random.below(2);
            board.put_pod("changes", &versioned(version));
            format!("changes has version {version}")
        }
        1 => {
            let name = format!("comes-{}", random.below(2));
            if board.names().contains(&name) {
                board.run(&format!("rm /etc/smolet/manifests/{name}.yaml"));
                board.forget(&name);
                return format!("{name} goes");
            }
            board.put_pod(&name, &versioned(1));
            format!("{name} comes")
        }
        2 => {
            let web = board.container("web");
            runtime::kill(board, &web);
            "web's container dies".into()
        }
        3 => {
            board.run("kill -KILL $(systemctl show --value -p MainPID smolet)");
            "the agent dies".into()
        }
        _ => "nothing".into(),
    }
}

/// After the pods are as wanted: state is whole, and there is no more than they need.
fn nothing_is_left_over(board: &Board) {
    let log = board.log();
    let damaged: Vec<&str> =
        log.lines().filter(|line| line.contains("damaged") || line.contains("panicked")).collect();
    assert_eq!(damaged, [""; 0]);
    let pods: Vec<String> =
        board.list().iter().map(|pod| pod["metadata"]["uid"].as_str().unwrap().to_owned()).collect();
    let set_aside = board.run("ls /var/lib/smolet/*.damaged 2>/dev/null || true");
    assert_eq!(set_aside, "");
    // What has ended is removed by and by.
    let mut last = String::new();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(150) {
        let found = board.run(&format!(
            "echo cgroups $(find /sys/fs/cgroup/kubepods -maxdepth 2 -type d -name 'pod*' | sed 's,.*/pod,,'); \
             echo directories $(ls /var/lib/smolet/pods); {}",
            runtime::counts()
        ));
        let strange = found
            .lines()
            .take(2)
            .flat_map(|line| line.split(' ').skip(1))
            .find(|uid| !pods.contains(&(*uid).to_owned()));
        let counts: Vec<usize> =
            found.lines().skip(2).map(|line| line.split(' ').nth(1).unwrap().parse().unwrap()).collect();
        // A sandbox of before stays with the container whose log `smolet logs -p` shows.
        let most = [2 * pods.len(), pods.len(), pods.len()];
        if strange.is_none() && counts.iter().zip(most).all(|(count, most)| *count <= most) {
            return;
        }
        last = format!("{found}\nof {} pods: {pods:?}", pods.len());
        std::thread::sleep(Duration::from_secs(5));
    }
    panic!("left over: {last}");
}

/// Files without a byte in the layers of images, after those that nothing refers to have gone.
fn empty_files(board: &Board) -> Vec<String> {
    runtime::collect_layers(board);
    empty_files_now(board)
}

fn empty_files_now(board: &Board) -> Vec<String> {
    let found = board.run(&format!(
        "find {} -type f -size 0 '(' -path '*/fs/bin/*' -o -path '*/fs/etc/version' -o -path '*/fs/www/*' ')'",
        runtime::layers()
    ));
    found.lines().map(str::to_owned).collect()
}

/// What the disk loses is shown first: a test that loses nothing would hold nothing.
fn disk_loses_what_it_has_not_flushed(board: &Board) {
    board.run("for name in lost kept; do dd if=/dev/zero of=/$name bs=64k count=1 2>/dev/null; done; sync");
    board.cut();
    board.up(&[]);
    board.wait();
    board.run("tr '\\0' x </dev/zero | head -c 65536 >/run/x; dd if=/run/x of=/kept bs=64k conv=notrunc,fsync oflag=direct 2>/dev/null; \
               dd if=/run/x of=/lost bs=64k conv=notrunc oflag=direct 2>/dev/null");
    board.cut();
    board.up(&[]);
    board.wait();
    assert_eq!(
        board.run("for name in kept lost; do tr -d '\\0' </$name | wc -c; done; rm /kept /lost"),
        "65536\n0"
    );
}

pub fn all(board: &Board) {
    let cuts = number("SMOLET_BOARD_CUTS").unwrap_or(100);
    let mut random = random();
    board.wait_for_pods();
    // What the images' first use has written is on the disk.
    board.run("sync");
    if crate::is_long() {
        disk_loses_what_it_has_not_flushed(board);
    }
    let mut floor = Floor::default();
    board.wait_for_pods();
    floor.look(board);
    let (mut done, mut slowest) = (0, 0.0_f64);
    while done < cuts {
        let what = stir(board, &mut random);
        let wait = random.millis(WAIT_MS_MAX);
        std::thread::sleep(wait);
        floor.cut();
        board.cut();
        done += 1;
        println!("  cut {done}: {what}, {:.1} s later", wait.as_secs_f64());
        while done < cuts && random.below(CUTS_IN_A_BOOT_OF) == 0 {
            board.up(&[]);
            let wait = random.millis(BOOT_MS_MAX);
            std::thread::sleep(wait);
            board.cut();
            done += 1;
            println!("  cut {done}: {:.1} s after the emulator's start", wait.as_secs_f64());
        }
        board.up(&[]);
        board.wait();
        let begun = Instant::now();
        board.wait_for_pods();
        let wanted = board.seconds_to_ssh() + begun.elapsed().as_secs_f64();
        slowest = slowest.max(wanted);
        floor.look(board);
        nothing_is_left_over(board);
        assert_eq!(empty_files(board), [""; 0], "files of images that were flushed long ago");
        println!(
            "    ssh answers after {:.0} s, pods are as wanted after {wanted:.0}, nothing is left over after {:.0}",
            board.seconds_to_ssh(),
            board.seconds_to_ssh() + begun.elapsed().as_secs_f64()
        );
    }
    board.figure(
        "power cuts survived",
        format!("{done}; at most {slowest:.0} s from power on until all pods were as wanted"),
    );
}

/// The tests' images go, and come from their archive again; but for smolet.test/pause:1, which is the sandbox' image by another name, and
/// the runtime removes an image with all its names.
fn import_again(board: &Board) {
    let names = "smolet.test/busybox:1 smolet.test/busybox:2 smolet.test/version:1 smolet.test/version:2";
    board.run("mv /var/lib/smolet/images/test.tar /root/");
    board.wait_for("the end of the images", 300, || {
        let _ = board.try_run(&format!("smolet image rm {names}"));
        let left = board.run("smolet image ls");
        (!left.contains("smolet.test/busybox") && !left.contains("smolet.test/version")).then_some(())
    });
    // What nothing refers to is collected a little later.
    board.wait_for("the end of their layers", 300, || {
        board.run(&format!("find {} -path '*/fs/etc/version'", runtime::layers())).is_empty().then_some(())
    });
    board.run("sync; mv /root/test.tar /var/lib/smolet/images/test.tar");
    board.wait_for("the images", 300, || {
        board.run("smolet image ls").contains("smolet.test/version").then_some(())
    });
}

/// How long the agent has for writing an image out, from its first use to the cut.
#[derive(Clone, Copy, Debug, PartialEq)]
enum WrittenOut {
    /// It is stopped as soon as the layer is unpacked: the disk has not got it.
    No,
    /// Cut within [`WRITTEN_OUT_MS`].
    Perhaps,
    /// Cut after that, and before the kernel would have written it out.
    Yes,
}

/// The pods of each cut, with their images.
const OF_IMAGES: [(&str, &str); 2] =
    [("first", "smolet.test/version:1"), ("second", "smolet.test/busybox:2")];

/// Files and links of an image as its archive has them: their paths, and what [`content`] prints of them.
struct Image {
    files: String,
    content: String,
}

/// Prints the digest of each of these files, and where the links of `bin` lead; below a root in which it is run.
fn content(files: &str) -> String {
    format!("sha256sum {files} && ls -l bin | grep -o \"[^ ]* -> .*\" | LC_ALL=C sort")
}

/// From the archive on the board, which is no work of the runtime.
fn image(board: &Board, name: &str) -> Image {
    let manifest = board.run("tar -xOf /root/images/test.tar ./manifest.json");
    let manifest: serde_json::Value = serde_json::from_str(&manifest).unwrap();
    let has_name = |image: &&serde_json::Value| image["RepoTags"][0] == name;
    let image = manifest.as_array().unwrap().iter().find(has_name).expect("the archive has the image");
    let mut unpack = "rm -rf /run/expected && mkdir /run/expected && cd /run/expected".to_owned();
    for layer in image["Layers"].as_array().unwrap() {
        unpack += &format!(" && tar -xOf /root/images/test.tar ./{} | tar -x", layer.as_str().unwrap());
    }
    let files = board.run(&format!("{unpack} && find bin etc www -type f | sort | tr '\\n' ' '"));
    for file in ["bin/busybox", "etc/version", "www/index.html"] {
        assert!(files.split(' ').any(|found| found == file), "{name}: no {file} among {files}");
    }
    let content = board.run(&format!("cd /run/expected && {}", content(&files)));
    assert!(content.contains("sh -> busybox"), "{name}: {content}");
    Image { files, content }
}

fn put(board: &Board, (pod, image): (&str, &str)) {
    let spec = format!(
        "terminationGracePeriodSeconds: 2, containers: [{{name: c, image: '{image}', command: [/bin/version]}}]"
    );
    board.put_pod(pod, &spec);
}

/// Layers that containerd has unpacked and the agent has not recorded as written out.
fn unrecorded(board: &Board) -> String {
    board.run(
        "for layer in $(ctr -n k8s.io snapshots ls | awk '$NF == \"Committed\" { print $1 }'); do \
         grep -qx $layer /var/lib/smolet/unpacked-layers || echo $layer; done",
    )
}

/// Within the kernel's write-back time after an image's first use, the power is cut. Then
///
/// - every file of the images has the content that its archive has, as the running containers read it;
/// - layers whose files the cut has emptied, as is seen before the agent starts, were removed by it, and it says so by an event;
/// - layers that it had written out lose nothing, and it removes none.
///
/// Of each three cuts the first comes while the agent is kept from writing the layer out, and has to empty files of it: else the test
/// holds nothing. The embedded runtime has its images on the disk before they can be used: no cut empties any.
pub fn after_import(board: &Board) {
    let cuts = number("SMOLET_BOARD_IMPORT_CUTS").unwrap_or(6);
    let mut random = random();
    let images = OF_IMAGES.map(|(_, name)| image(board, name));
    board.set_aside();
    // What the cut has left is looked at before the agent starts.
    board.run("systemctl disable smolet && sync");
    let (mut emptied, mut healed) = (0, 0);
    for cut in 0..cuts {
        let written_out = [WrittenOut::No, WrittenOut::Perhaps, WrittenOut::Yes][(cut % 3) as usize];
        import_again(board);
        // The import's own write-out is over.
        std::thread::sleep(Duration::from_millis(WRITTEN_OUT_MS));
        let wait = match written_out {
            WrittenOut::No => {
                put(board, OF_IMAGES[0]);
                board.run(&format!(
                    "n=0; until ls {}/*/fs/www/index.html >/dev/null 2>&1; do [ $((n += 1)) -lt 600 ] || exit 1; sleep 0.1; done; \
                     kill -STOP $(systemctl show --value -p MainPID smolet)",
                    runtime::layers()
                ));
                // containerd ends what it was asked for.
                Duration::from_secs(5) + random.millis(WRITTEN_OUT_MS)
            }
            WrittenOut::Perhaps => {
                OF_IMAGES.iter().for_each(|of| put(board, *of));
                board.wait_for_pods();
                random.millis(WRITTEN_OUT_MS)
            }
            WrittenOut::Yes => {
                OF_IMAGES.iter().for_each(|of| put(board, *of));
                board.wait_for_pods();
                Duration::from_millis(WRITTEN_OUT_MS) + random.millis(WRITE_BACK_MS - WRITTEN_OUT_MS)
            }
        };
        std::thread::sleep(wait);
        if written_out == WrittenOut::Yes && !runtime::is_embedded() {
            assert_eq!(unrecorded(board), "", "the agent has had all layers written out");
        }
        board.cut();
        board.up(&[]);
        board.wait();
        let lost = empty_files_now(board);
        board.run("systemctl start --no-block smolet");
        if written_out == WrittenOut::No {
            put(board, OF_IMAGES[1]);
        }
        board.wait_for_pods();
        for ((pod, _), image) in OF_IMAGES.iter().zip(&images) {
            let found = board.run(&format!("smolet exec {pod} -- sh -c 'cd / && {}'", content(&image.files)));
            assert_eq!(found, image.content, "what {pod} reads of its image");
        }
        assert_eq!(empty_files(board), [""; 0], "what was emptied is unpacked again");
        let events: u64 = board
            .run("journalctl -b -u smolet --no-pager | grep -c ImagesUnpackedAgain || true")
            .parse()
            .unwrap();
        println!(
            "  cut {}, written out: {written_out:?}, {:.1} s later: {} files were empty, {events} events of a removal",
            cut + 1,
            wait.as_secs_f64(),
            lost.len()
        );
        if runtime::is_embedded() || written_out == WrittenOut::Yes {
            assert!(lost.is_empty() && events == 0, "what is written out is whole, and stays: {lost:?}");
        }
        if written_out == WrittenOut::No && !runtime::is_embedded() {
            assert!(!lost.is_empty(), "the cut empties files that nobody has written out");
        }
        if !lost.is_empty() {
            assert!(events > 0, "the removal of what was emptied is told: {lost:?}");
            healed += 1;
        }
        emptied += lost.len();
        board.remove(&OF_IMAGES.map(|(pod, _)| pod));
    }
    board.figure(
        "power cuts within 25 s of an image's first use; files emptied; cuts after which layers were unpacked again",
        format!("{cuts}; {emptied}; {healed}"),
    );
    board.run("systemctl enable smolet");
    import_again(board);
    board.put_back();
}
