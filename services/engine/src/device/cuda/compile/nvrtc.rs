//! The compiler's C interface: a text with its headers becomes machine code or PTX.
#![expect(unsafe_code, reason = "calls a C library")]

use std::ffi::{CStr, CString, c_char};
use std::ptr;

use cudarc::nvrtc::sys;

use super::CompileError;
use crate::device::cuda::pack::Architecture;
use crate::ops::cuda::Source;

/// Returns the compiler's version.
pub fn version() -> Result<String, CompileError> {
    // SAFETY: loads the library if it exists.
    if !unsafe { sys::is_culib_present() } {
        return Err(CompileError::NoCompiler);
    }
    let (mut major, mut minor) = (0, 0);
    // SAFETY: writes two numbers.
    unsafe { sys::nvrtcVersion(&mut major, &mut minor) };
    Ok(format!("{major}.{minor}"))
}

/// Compiles one file.
pub fn compile(
    source: &Source,
    architecture: &'static Architecture,
    headers: &[(&str, &str)],
) -> Result<Vec<u8>, CompileError> {
    version()?;
    let program = Program::new(source, headers)?;
    let options = [
        format!("--gpu-architecture={}", architecture.name),
        "--std=c++17".to_owned(),
        "-default-device".to_owned(),
    ];
    let options: Vec<CString> = options
        .iter()
        .map(|text| c_string(text))
        .collect::<Result<_, _>>()?;
    let pointers: Vec<*const c_char> = options.iter().map(|text| text.as_ptr()).collect();
    // SAFETY: the program is alive, the options are strings.
    let answer =
        unsafe { sys::nvrtcCompileProgram(program.0, pointers.len() as i32, pointers.as_ptr()) };
    if answer != sys::nvrtcResult::NVRTC_SUCCESS {
        return Err(CompileError::Refused {
            source_name: source.name,
            architecture: architecture.name,
            log: program.log(),
        });
    }
    Ok(program.image(architecture.is_ptx()))
}

struct Program(sys::nvrtcProgram);

impl Program {
    fn new(source: &Source, headers: &[(&str, &str)]) -> Result<Self, CompileError> {
        let text = c_string(source.text)?;
        let name = c_string(&format!("{}.cu", source.name))?;
        let strings = |pick: fn(&(&str, &str)) -> String| -> Result<Vec<CString>, CompileError> {
            headers
                .iter()
                .map(|header| c_string(&pick(header)))
                .collect()
        };
        let names = strings(|(name, _)| (*name).to_owned())?;
        let texts = strings(|(_, text)| (*text).to_owned())?;
        let pointers = |strings: &[CString]| -> Vec<*const c_char> {
            strings.iter().map(|text| text.as_ptr()).collect()
        };
        let mut program = ptr::null_mut();
        // SAFETY: all strings live until the call returns, which copies them.
        let answer = unsafe {
            sys::nvrtcCreateProgram(
                &mut program,
                text.as_ptr(),
                name.as_ptr(),
                headers.len() as i32,
                pointers(&texts).as_ptr(),
                pointers(&names).as_ptr(),
            )
        };
        match answer {
            sys::nvrtcResult::NVRTC_SUCCESS => Ok(Self(program)),
            refused => Err(CompileError::Image {
                place: format!("{}.cu", source.name),
                rule: format!("nvrtcCreateProgram answered {refused:?}"),
            }),
        }
    }

    fn log(&self) -> String {
        let mut len = 0;
        // SAFETY: the program is alive; the buffer is as long as the library says.
        unsafe {
            sys::nvrtcGetProgramLogSize(self.0, &mut len);
            let mut text = vec![0u8; len.max(1)];
            sys::nvrtcGetProgramLog(self.0, text.as_mut_ptr().cast());
            CStr::from_bytes_until_nul(&text)
                .map_or(String::new(), |text| text.to_string_lossy().into())
        }
    }

    fn image(&self, is_ptx: bool) -> Vec<u8> {
        let mut len = 0;
        // SAFETY: the program is compiled; the buffer is as long as the library says.
        unsafe {
            if is_ptx {
                sys::nvrtcGetPTXSize(self.0, &mut len);
            } else {
                sys::nvrtcGetCUBINSize(self.0, &mut len);
            }
            let mut image = vec![0u8; len];
            if is_ptx {
                sys::nvrtcGetPTX(self.0, image.as_mut_ptr().cast());
            } else {
                sys::nvrtcGetCUBIN(self.0, image.as_mut_ptr().cast());
            }
            image
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed once.
        unsafe { sys::nvrtcDestroyProgram(&mut self.0) };
    }
}

fn c_string(text: &str) -> Result<CString, CompileError> {
    CString::new(text).map_err(|error| CompileError::Image {
        place: "a text to compile".into(),
        rule: error.to_string(),
    })
}
