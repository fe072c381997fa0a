//! A program that runs all its stages, or those that the command line names, and writes their results.

use crate::docs::write_plots;
use crate::machine::{machine, today};
use crate::placement::{Place, be_client_of};
use crate::report::Report;
use crate::results::Results;
use crate::server::Server;
use clap::{CommandFactory, FromArgMatches, Parser};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fs, io};

/// A stage: its name, what it measures, and the function that measures it.
pub type Stage = (&'static str, &'static str, fn(&mut Report));

#[derive(Debug)]
pub struct Suite {
    pub about: &'static str,
    pub stages: &'static [Stage],
    /// Parts of stages that can be run alone: `STAGE/CASE`.
    pub cases: Vec<String>,
    /// The directory for the results.
    pub into: &'static str,
    /// Writes the results of one or more runs into a directory of docs.
    pub write_docs: fn(&Path, &[Results]) -> io::Result<()>,
}

/// LOCKWARD_SERVER names the server (default: redis-server). LOCKWARD_MODULE names the module (default:
/// target/release/liblockward.so).
#[derive(Debug, Parser)]
struct Arguments {
    /// The stages, or cases of a stage. The default is all stages.
    names: Vec<String>,
    /// The directory for results.json and the plots.
    #[arg(long)]
    into: Option<PathBuf>,
    /// Measures nothing. Writes the results of these files, or of the last run, into the page of this directory.
    #[arg(long, num_args = 1.., value_names = ["DOCS", "RESULTS"])]
    docs: Vec<PathBuf>,
}

impl Suite {
    /// Runs the program. Fails if a target is missed by more than noise.
    pub fn main(self) -> ExitCode {
        let stages = self.stages.iter().map(|(name, about, _)| format!("  {name:<12}{about}\n"));
        let cases = self.cases.iter().map(|case| format!("  {case}\n"));
        let stages = format!("Stages:\n{}", stages.chain(cases).collect::<String>());
        let matches = Arguments::command().about(self.about).after_help(stages).get_matches();
        let Arguments { names, into, docs } =
            Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
        let into = into.unwrap_or_else(|| self.into.into());
        let done = match &docs[..] {
            [] => self.run(names, &into),
            [docs] => self.write(docs, &[into.join("results.json")]),
            [docs, files @ ..] => self.write(docs, files),
        };
        done.unwrap_or_else(|error| {
            eprintln!("{error}");
            ExitCode::from(2)
        })
    }

    fn write(&self, docs: &Path, files: &[PathBuf]) -> io::Result<ExitCode> {
        let read = |file: &PathBuf| {
            let text = fs::read_to_string(file);
            let read = text.and_then(|text| serde_json::from_str(&text).map_err(io::Error::from));
            read.map_err(|error| io::Error::other(format!("{}: {error}", file.display())))
        };
        (self.write_docs)(docs, &files.iter().map(read).collect::<io::Result<Vec<Results>>>()?)?;
        Ok(ExitCode::SUCCESS)
    }

    fn run(&self, names: Vec<String>, into: &Path) -> io::Result<ExitCode> {
        let is_known =
            |name: &&String| self.cases.contains(name) || self.stages.iter().any(|(stage, ..)| stage == name);
        if let Some(unknown) = names.iter().find(|name| !is_known(name)) {
            return Err(io::Error::other(format!("There is no stage {unknown}: see --help.")));
        }
        be_client_of(Place::Apart);
        let machine = machine();
        let server = Server::start(&[]).version();
        eprintln!("{server}");
        let mut report = Report::new(names);
        for (name, about, measure) in self.stages {
            if report.is_stage_asked(name) {
                report.stage(name, about);
                measure(&mut report);
            }
        }
        let seconds = report.elapsed().as_secs_f64();
        let results =
            Results { server, machine, day: today(), seconds, rows: report.rows, plots: report.plots };
        fs::create_dir_all(into)?;
        fs::write(into.join("results.json"), serde_json::to_string_pretty(&results)? + "\n")?;
        write_plots(into, &results)?;
        println!("{}\n\n{}", results.circumstances(), results.table());
        println!("Results and plots are in {}.", into.display());
        let missed = results.missed();
        if missed.is_empty() {
            println!("No target is missed by more than noise.");
            return Ok(ExitCode::SUCCESS);
        }
        println!("These figures miss their targets: {}.", missed.join(", "));
        Ok(ExitCode::FAILURE)
    }
}
