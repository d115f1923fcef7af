//! The program `deltaic`.

fn main() -> std::process::ExitCode {
    deltaic_server::main()
}
