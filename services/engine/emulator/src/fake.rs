//! Steers the fake driver of this process. What is set and seen belongs to the calling thread.
#![expect(unsafe_code, reason = "opens a C library and calls it")]

use std::ffi::{CStr, CString, c_char, c_int, c_longlong, c_ulonglong, c_void};
use std::path::Path;
use std::sync::OnceLock;

use crate::build::{Flavour, build};

/// How the threads of a block take turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Schedule {
    Forward,
    Reverse,
    Random(u64),
}

impl Schedule {
    /// Those that every test of a kernel runs.
    pub const ALL: [Self; 3] = [Self::Forward, Self::Reverse, Self::Random(7)];
}

/// The fake driver, loaded.
pub struct Fake {
    library: *mut c_void,
}

// SAFETY: the library is never closed, and its functions may be called by any thread.
unsafe impl Send for Fake {}
// SAFETY: as for `Send`.
unsafe impl Sync for Fake {}

impl Fake {
    /// Loads the driver before anybody asks for a real one; the flavour is that of the first call.
    pub fn load(flavour: &Flavour) -> &'static Self {
        static LOADED: OnceLock<Fake> = OnceLock::new();
        LOADED.get_or_init(|| Self::open(&build(flavour)))
    }

    fn open(folder: &Path) -> Self {
        let path = folder.join("libcuda.so.1");
        let path = CString::new(path.as_os_str().as_encoded_bytes()).expect("no zero in a path");
        // SAFETY: our own library; its initialisers register kernels.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        assert!(!library.is_null(), "the fake driver loads: {path:?}");
        Self { library }
    }

    fn symbol(&self, name: &CStr) -> *mut c_void {
        // SAFETY: the library is open.
        let symbol = unsafe { libc::dlsym(self.library, name.as_ptr()) };
        assert!(!symbol.is_null(), "the fake driver has {name:?}");
        symbol
    }

    /// Sets the order of threads for this thread's launches.
    pub fn schedule(&self, schedule: Schedule) {
        let (kind, seed) = match schedule {
            Schedule::Forward => (0, 1),
            Schedule::Reverse => (1, 1),
            Schedule::Random(seed) => (2, seed),
        };
        // SAFETY: the signature of fake_cuda.cpp.
        let call: extern "C" fn(c_int, c_ulonglong) =
            unsafe { std::mem::transmute(self.symbol(c"fovea_fake_schedule")) };
        call(kind, seed);
    }

    /// Lets this thread's `nth` call of a driver function from now on fail with a code; 0 for never.
    pub fn fail(&self, function: &CStr, nth: i32, code: i32) {
        // SAFETY: the signature of fake_cuda.cpp.
        let call: extern "C" fn(*const c_char, c_int, c_int) =
            unsafe { std::mem::transmute(self.symbol(c"fovea_fake_fail")) };
        call(function.as_ptr(), nth, code);
    }

    /// Returns how many allocations, streams, modules, events and graphs this thread has made and not given back.
    pub fn live(&self) -> i64 {
        // SAFETY: the signature of fake_cuda.cpp.
        let call: extern "C" fn() -> c_longlong =
            unsafe { std::mem::transmute(self.symbol(c"fovea_fake_live")) };
        call()
    }

    /// Returns this thread's launches that have run, a line each: name, grid, threads, dynamic shared memory.
    pub fn log(&self) -> String {
        self.text(c"fovea_fake_log")
    }

    /// Returns the kernels that are compiled in, a line each: name, bytes of parameters, threads, blocks.
    pub fn kernels(&self) -> String {
        self.text(c"fovea_fake_kernels")
    }

    /// Forgets log and error.
    pub fn clear(&self) {
        // SAFETY: the signature of fake_cuda.cpp.
        let call: extern "C" fn() =
            unsafe { std::mem::transmute(self.symbol(c"fovea_fake_clear")) };
        call();
    }

    fn text(&self, name: &CStr) -> String {
        // SAFETY: the signature of fake_cuda.cpp; the text is copied before anything changes it.
        unsafe {
            let call: extern "C" fn() -> *const c_char = std::mem::transmute(self.symbol(name));
            CStr::from_ptr(call()).to_string_lossy().into_owned()
        }
    }
}
