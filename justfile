# The menu: `just` shows it.
default:
    @just --list

# Starts a fleet on this machine.
dev:
    scripts/setup.sh && cargo run --bin fovea -- up

# Format, lints, tests, the page: what CI runs.
check:
    scripts/test.sh

# Tests of one crate: `just test engine`.
test crate:
    cargo test -p {{crate}}

fmt:
    cargo fmt --all

# The whole job on a sample dataset.
demo *arguments:
    scripts/demo.sh {{arguments}}
