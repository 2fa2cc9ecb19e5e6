//! Compiles the emulator and the kernels with g++, each file once for each text and set of flags.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use engine::device::cuda::{HEADERS, sources};
use engine::ops::cuda::header;

const NATIVE: [(&str, &str); 2] = [
    ("emu.cpp", include_str!("../native/emu.cpp")),
    ("fake_cuda.cpp", include_str!("../native/fake_cuda.cpp")),
];
const NATIVE_HEADERS: [(&str, &str); 2] = [
    ("emu.h", include_str!("../native/emu.h")),
    ("warp.h", include_str!("../native/warp.h")),
];
/// Compilers at once.
const JOBS: usize = 2;

/// How the library is built.
#[derive(Debug, Clone, Default)]
pub struct Flavour {
    /// Macros, each of which plants a bug or takes something away.
    pub defines: Vec<String>,
    /// With address and undefined-behaviour sanitizers.
    pub sanitized: bool,
}

/// Builds the library of a flavour if need be; returns a folder with `libcuda.so` and `libcuda.so.1`.
pub fn build(flavour: &Flavour) -> PathBuf {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let root = target().join("emulator");
    let headers = write_headers(&root);
    let unit = |name: &str, text: &str| Unit::new(&root, name, text, flavour.flags(text), &headers);
    let mut units: Vec<Unit> = NATIVE.iter().map(|(name, text)| unit(name, text)).collect();
    for source in sources() {
        units.push(unit(&format!("{}.cu.cpp", source.name), source.text));
    }
    for units in units.chunks(JOBS) {
        std::thread::scope(|scope| {
            for unit in units {
                scope.spawn(|| unit.compile(&headers));
            }
        });
    }
    link(&root, &units, &flavour.flags(""))
}

/// Returns whether a macro has a meaning in a text or in a header that it includes, so that only what it changes is
/// compiled again.
fn reaches(text: &str, define: &str) -> bool {
    let headers = HEADERS
        .iter()
        .filter(|(name, _)| text.contains(&format!("#include \"{name}\"")));
    text.contains(define) || headers.into_iter().any(|(_, text)| reaches(text, define))
}

impl Flavour {
    fn flags(&self, text: &str) -> Vec<String> {
        let plain = [
            "-std=c++17",
            "-fPIC",
            "-fvisibility=hidden",
            "-march=x86-64-v3",
            "-w",
            "-g1",
        ];
        let mut flags: Vec<String> = plain.map(str::to_owned).to_vec();
        flags.push(if self.sanitized { "-O1" } else { "-O3" }.into());
        // A kernel must not get a rounding on the host that it has not on a GPU.
        flags.push("-ffp-contract=off".into());
        if self.sanitized {
            flags.push("-fsanitize=address,undefined".into());
            flags.push("-fno-sanitize-recover=undefined".into());
        }
        let defines = self.defines.iter().filter(|define| reaches(text, define));
        flags.extend(defines.map(|define| format!("-D{define}")));
        flags
    }
}

/// One file to compile; its object is named after all that goes into it.
struct Unit {
    source: PathBuf,
    object: PathBuf,
    text: String,
    flags: Vec<String>,
}

impl Unit {
    fn new(root: &Path, name: &str, text: &str, flags: Vec<String>, headers: &Path) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(text.as_bytes());
        hasher.update(headers.as_os_str().as_encoded_bytes());
        for flag in &flags {
            hasher.update(flag.as_bytes()).update(b" ");
        }
        let hash = &hasher.finalize().to_hex()[..16];
        Self {
            source: root.join(format!("{hash}-{name}")),
            object: root.join(format!("{hash}-{name}.o")),
            text: text.to_owned(),
            flags,
        }
    }

    fn compile(&self, headers: &Path) {
        if self.object.exists() {
            return;
        }
        write(&self.source, &self.text);
        let partial = self
            .object
            .with_extension(format!("{}.partial", std::process::id()));
        run(Command::new("g++")
            .args(&self.flags)
            .arg("-I")
            .arg(headers)
            .arg("-c")
            .arg(&self.source)
            .arg("-o")
            .arg(&partial));
        // Another process may be at the same object.
        fs::rename(&partial, &self.object).expect("the object gets its name");
    }
}

fn link(root: &Path, units: &[Unit], flags: &[String]) -> PathBuf {
    let mut hasher = blake3::Hasher::new();
    for unit in units {
        hasher.update(unit.object.as_os_str().as_encoded_bytes());
    }
    let folder = root.join(&hasher.finalize().to_hex()[..16]);
    if folder.join("libcuda.so.1").exists() {
        return folder;
    }
    let partial = root.join(format!("{}.so.partial", std::process::id()));
    // With this name for the loader, whoever opens `libcuda.so` after us gets ours.
    run(Command::new("g++")
        .args(flags)
        .args(["-shared", "-Wl,-soname,libcuda.so", "-Wl,-Bsymbolic"])
        .args(units.iter().map(|unit| &unit.object))
        .arg("-o")
        .arg(&partial)
        .arg("-lpthread"));
    fs::create_dir_all(&folder).expect("a folder for the library");
    let _ = std::os::unix::fs::symlink("libcuda.so.1", folder.join("libcuda.so"));
    fs::rename(&partial, folder.join("libcuda.so.1")).expect("the library gets its name");
    folder
}

/// Writes the headers to a folder named after their contents.
fn write_headers(root: &Path) -> PathBuf {
    let mut files: Vec<(&str, String)> = Vec::new();
    for (name, text) in HEADERS.iter().chain(&NATIVE_HEADERS) {
        files.push((name, (*text).to_owned()));
    }
    files.push(("params.h", header(&sources())));
    let mut hasher = blake3::Hasher::new();
    for (name, text) in &files {
        hasher.update(name.as_bytes()).update(text.as_bytes());
    }
    let folder = root.join(format!("include-{}", &hasher.finalize().to_hex()[..16]));
    fs::create_dir_all(&folder).expect("a folder for headers");
    for (name, text) in files {
        write(&folder.join(name), &text);
    }
    folder
}

fn write(path: &Path, text: &str) {
    if fs::read_to_string(path).is_ok_and(|known| known == text) {
        return;
    }
    let partial = path.with_extension(format!("{}.partial", std::process::id()));
    fs::write(&partial, text).expect("the target folder can be written");
    fs::rename(&partial, path).expect("the file gets its name");
}

fn run(command: &mut Command) {
    // A sanitizer that is preloaded for the tests is none of the compiler's business.
    let output = command
        .env_remove("LD_PRELOAD")
        .output()
        .expect("g++ is installed");
    assert!(
        output.status.success(),
        "{command:?}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Returns the folder that cargo builds to: the program that runs is in `<target>/<profile>/deps`.
fn target() -> PathBuf {
    let program = std::env::current_exe().expect("a program knows where it is");
    let target = program.ancestors().nth(3);
    target.expect("a program is in a target folder").to_owned()
}
