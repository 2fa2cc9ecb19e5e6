//! Gathers the `errors.md` of every service, so that the gateway can serve each reason's section.

use std::error::Error;
use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

#[expect(
    clippy::disallowed_methods,
    reason = "a build script learns its folders from the environment"
)]
fn main() -> Result<(), Box<dyn Error>> {
    let services = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("..");
    println!("cargo:rerun-if-changed=build.rs");
    let mut table = String::from("&[\n");
    let mut folders: Vec<_> = fs::read_dir(&services)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    folders.sort();
    for folder in folders {
        let page = folder.join("errors.md");
        // A page that is not there yet must not be named: cargo would run this at every build.
        if page.is_file() {
            println!("cargo:rerun-if-changed={}", page.display());
            let name = folder.file_name().unwrap_or_default().to_string_lossy();
            let page = page.canonicalize()?;
            writeln!(
                table,
                "({name:?}, include_str!({:?})),",
                page.display().to_string()
            )?;
        }
    }
    table.push(']');
    fs::write(Path::new(&env::var("OUT_DIR")?).join("errors.rs"), table)?;
    Ok(())
}
