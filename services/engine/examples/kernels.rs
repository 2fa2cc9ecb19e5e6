//! Compiles the kernels without the rest of Fovea: `scripts/kernels.sh` runs this. `fovea engine kernels` is the same.

use std::process::ExitCode;

use engine::device::cuda::compile::{Options, run};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let options = match Options::read(&arguments) {
        Ok(options) => options,
        Err(rule) => return refuse(&rule),
    };
    match run(&options) {
        Ok(report) => {
            print(&report.text(options.is_brief));
            ExitCode::from(u8::from(!report.is_good()))
        }
        Err(error) => refuse(&error.to_string()),
    }
}

#[expect(clippy::print_stdout, reason = "a program for the terminal")]
fn print(text: &str) {
    print!("{text}");
}

fn refuse(reason: &str) -> ExitCode {
    eprintln!("kernels: {reason}");
    ExitCode::FAILURE
}
