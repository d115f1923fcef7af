//! The program `deltaic` as a binary of this crate, so that cargo builds it anew, checks of debug builds and all, whenever
//! it runs the tests.

fn main() -> std::process::ExitCode {
    deltaic_server::main()
}
