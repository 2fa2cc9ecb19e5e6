//! Compiles `fovea/**` and `google/api/**` with a pure-Rust compiler; no `protoc` is needed.

use std::{env, error::Error, fs, io, path::Path};

#[expect(
    clippy::disallowed_methods,
    reason = "a build script learns its output folder from the environment"
)]
fn main() -> Result<(), Box<dyn Error>> {
    let mut files = Vec::new();
    for root in ["fovea", "google"] {
        println!("cargo:rerun-if-changed={root}");
        collect(Path::new(root), &mut files)?;
    }
    files.sort();
    let mut compiler = protox::Compiler::new(["."])?;
    compiler
        .include_imports(true)
        .include_source_info(true)
        .open_files(&files)?;
    // The encoded form keeps the custom options; the decoded form, which has no field for them, would not.
    // It also keeps the comments, which become descriptions in the OpenAPI document.
    fs::write(
        Path::new(&env::var("OUT_DIR")?).join("descriptors.bin"),
        compiler.encode_file_descriptor_set(),
    )?;
    // Drawings of state machines in comments must not become code blocks that rustdoc would run.
    let mut files = compiler.file_descriptor_set();
    for file in &mut files.file {
        file.source_code_info = None;
    }
    let mut config = tonic_prost_build::Config::new();
    config.enable_type_names();
    tonic_prost_build::configure()
        .bytes(".fovea.endpoints.v1.PredictRequest")
        .bytes(".fovea.events.v1.SubscribeResponse")
        .include_file("contract.rs")
        .compile_fds_with_config(files, config)?;
    Ok(())
}

fn collect(folder: &Path, files: &mut Vec<String>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path
            .extension()
            .is_some_and(|extension| extension == "proto")
        {
            files.push(path.display().to_string());
        }
    }
    Ok(())
}
