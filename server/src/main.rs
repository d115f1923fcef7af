//! The program `deltaic`.

#![deny(clippy::print_stdout, clippy::print_stderr)]

fn main() -> std::process::ExitCode {
    deltaic_server::main()
}
