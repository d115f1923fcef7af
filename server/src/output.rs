//! What goes to standard output: one JSON document, or a page for people.

use crate::report::{Failure, write_document, write_line};
use serde::Serialize;
use std::fmt;
use std::io::{self, BufWriter, IsTerminal, Write};

/// What a command found out: serialised for scripts, printed for people.
pub trait Answer: Serialize {
    /// Print it for people.
    ///
    /// # Errors
    ///
    /// If the page cannot be written.
    fn print(&self, page: &mut Page<'_>) -> io::Result<()>;

    /// Print what is left of it for people who want quiet: the data that was asked for, not that all went well.
    ///
    /// # Errors
    ///
    /// If the page cannot be written.
    fn print_quietly(&self, page: &mut Page<'_>) -> io::Result<()> {
        self.print(page)
    }
}

/// A page for people.
pub struct Page<'a> {
    out: &'a mut dyn Write,
    /// How words are emphasised on it.
    pub paint: Paint,
}

impl<'a> Page<'a> {
    /// A page that is written to `out`.
    pub fn new(out: &'a mut dyn Write, paint: Paint) -> Self {
        Self { out, paint }
    }

    /// Write a line.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn line(&mut self, text: &str) -> io::Result<()> {
        writeln!(self.out, "{text}")
    }

    /// Write a line `Label    text`, with texts one below the other.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn field(&mut self, label: &str, text: impl fmt::Display) -> io::Result<()> {
        let label = self.paint.bold(&format!("{label:<9}"));
        writeln!(self.out, "{label} {text}")
    }
}

/// Emphasis by ANSI escape sequences, where there are colours.
#[derive(Debug, Clone, Copy)]
pub struct Paint {
    colors: bool,
}

impl Paint {
    /// Emphasise if there are `colors`.
    pub const fn new(colors: bool) -> Self {
        Self { colors }
    }

    /// Whether there are colours.
    pub const fn has_colors(self) -> bool {
        self.colors
    }

    /// Headings.
    pub fn bold(self, text: &str) -> String {
        self.wrap("1", text)
    }

    /// What matters less.
    pub fn dim(self, text: &str) -> String {
        self.wrap("2", text)
    }

    /// What went wrong.
    pub fn red(self, text: &str) -> String {
        self.wrap("1;31", text)
    }

    /// What is as it should be.
    pub fn green(self, text: &str) -> String {
        self.wrap("32", text)
    }

    /// What deserves a look; names of commits.
    pub fn yellow(self, text: &str) -> String {
        self.wrap("33", text)
    }

    fn wrap(self, code: &str, text: &str) -> String {
        if self.colors && !text.is_empty() {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

/// When there are colours.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ColorChoice {
    /// On a terminal, unless `NO_COLOR` is set or `TERM` is `dumb`.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl ColorChoice {
    /// How to emphasise on `stream`.
    pub fn paint(self, stream: &impl IsTerminal) -> Paint {
        Paint::new(match self {
            Self::Always => true,
            Self::Never => false,
            Self::Auto => {
                let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
                let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
                stream.is_terminal() && !set("NO_COLOR") && !dumb
            }
        })
    }
}

/// Columns of the terminal that standard output is, if it is one.
pub fn terminal_width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|&columns| columns > 0)
}

/// Standard output.
#[derive(Debug, Clone, Copy)]
pub struct Output {
    json: bool,
    quiet: bool,
    paint: Paint,
}

impl Output {
    /// Standard output as JSON or for people, who may want quiet.
    pub fn new(json: bool, quiet: bool, color: ColorChoice) -> Self {
        Self {
            json,
            quiet,
            paint: color.paint(&io::stdout()),
        }
    }

    /// Whether scripts read it.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// Write the answer.
    ///
    /// # Errors
    ///
    /// If it cannot be written; that its reader went away is told from other failures.
    pub fn answer(&self, answer: &impl Answer) -> Result<(), Failure> {
        self.write(|out| match self.json {
            true => write_document(out, answer),
            false if self.quiet => answer.print_quietly(&mut Page::new(out, self.paint)),
            false => answer.print(&mut Page::new(out, self.paint)),
        })
    }

    /// Write one of many answers, which come one after the other: a line of JSON, or what is printed for people.
    ///
    /// # Errors
    ///
    /// As [`answer`](Self::answer).
    pub fn next_answer(&self, answer: &impl Answer) -> Result<(), Failure> {
        match self.json {
            true => self.write(|out| write_line(out, answer)),
            false => self.answer(answer),
        }
    }

    /// Write part of a page at once, while the rest is still being worked out; nothing where scripts read.
    ///
    /// # Errors
    ///
    /// As [`answer`](Self::answer).
    pub fn part(&self, print: impl FnOnce(&mut Page<'_>) -> io::Result<()>) -> Result<(), Failure> {
        if self.json {
            return Ok(());
        }
        self.write(|out| print(&mut Page::new(out, self.paint)))
    }

    fn write(&self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
        let mut out = BufWriter::new(io::stdout().lock());
        write(&mut out)
            .and_then(|()| out.flush())
            .map_err(Failure::output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emphasis_is_there_only_with_colors() {
        assert_eq!(Paint::new(false).red("x"), "x");
        assert_eq!(Paint::new(true).red("x"), "\x1b[1;31mx\x1b[0m");
        assert_eq!(Paint::new(true).red(""), "");
    }

    #[test]
    fn explicit_choices_win_over_the_surroundings() {
        assert!(ColorChoice::Always.paint(&io::stdout()).colors);
        assert!(!ColorChoice::Never.paint(&io::stdout()).colors);
    }
}
