//! The command line: the flags of Apache's mqnamesrv and mqbroker, in any order, and ours.
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

/// A message broker that speaks RocketMQ's protocol and writes with direct I/O through io_uring
#[derive(Parser, Debug)]
#[command(name = "uringmq", version)]
pub struct Cli {
    #[command(subcommand)]
    pub what: What,
}

#[derive(Subcommand, Debug)]
pub enum What {
    /// Name server and broker in one process; without a file it stores under ./uringmq-data
    Standalone(StandaloneArgs),
    /// A name server
    Namesrv(NamesrvArgs),
    /// A controller, which elects the masters of broker groups
    Controller(ControllerArgs),
    /// A broker
    Broker(BrokerArgs),
    Bench(Box<uringmq_bench::BenchArgs>),
    Store(Box<uringmq_admin::store::StoreArgs>),
}

#[derive(Args, Debug)]
pub struct StandaloneArgs {
    /// A broker's properties file; the name server listens where its namesrvAddr says
    #[arg(short, long = "configFile", value_name = "FILE")]
    pub config_file: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct NamesrvArgs {
    /// Properties file
    #[arg(short, long = "configFile", value_name = "FILE")]
    pub config_file: Option<PathBuf>,
    /// Print the effective configuration and exit
    #[arg(short, long = "printConfigItem")]
    pub print: bool,
    /// Taken for compatibility, without effect
    #[arg(short, long = "namesrvAddr", value_name = "ADDR", hide = true)]
    pub namesrv_addr: Option<String>,
}

#[derive(Args, Debug)]
pub struct ControllerArgs {
    /// Properties file; run-time updates are written back to it
    #[arg(short, long = "configFile", value_name = "FILE")]
    pub config_file: Option<PathBuf>,
    /// Print the effective configuration and exit
    #[arg(short, long = "printConfigItem")]
    pub print: bool,
}

#[derive(Args, Debug)]
pub struct BrokerArgs {
    /// Properties file; run-time updates are written back to it
    #[arg(short, long = "configFile", value_name = "FILE")]
    pub config_file: Option<PathBuf>,
    /// Name servers, over what the file says
    #[arg(short, long = "namesrvAddr", value_name = "HOST:PORT;HOST:PORT")]
    pub namesrv_addr: Option<String>,
    /// Print the effective configuration and exit
    #[arg(short, long = "printConfigItem")]
    pub print: bool,
    /// Print the important keys of the effective configuration and exit
    #[arg(short = 'm', long = "printImportantConfig")]
    pub important: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use std::path::Path;

    #[test]
    fn the_flags_do_not_contradict_each_other() {
        Cli::command().debug_assert();
    }

    #[test]
    fn flags_of_mqbroker_in_any_order() {
        for line in [
            "-c f -n a:1;b:2 -p",
            "-p -n a:1;b:2 -c f",
            "-n a:1;b:2 -p -c f",
            "--namesrvAddr a:1;b:2 --configFile f -p",
        ] {
            let words = ["uringmq", "broker"].into_iter().chain(line.split(' '));
            let What::Broker(args) = Cli::try_parse_from(words).unwrap().what else { panic!("{line}") };
            assert_eq!(args.config_file.as_deref(), Some(Path::new("f")));
            assert_eq!(args.namesrv_addr.as_deref(), Some("a:1;b:2"));
            assert!(args.print && !args.important);
        }
    }

    #[test]
    fn flags_of_mqcontroller() {
        let parse =
            |line: &str| Cli::try_parse_from(["uringmq", "controller"].into_iter().chain(line.split_whitespace()));
        assert!(parse("-p -c f").is_ok());
        assert!(parse("").is_ok());
        assert!(parse("-n a:1").is_err());
    }

    #[test]
    fn flags_of_mqnamesrv() {
        let parse = |line: &str| Cli::try_parse_from(["uringmq", "namesrv"].into_iter().chain(line.split_whitespace()));
        assert!(parse("-n a:1 -c f -p").is_ok());
        assert!(parse("").is_ok());
        assert!(parse("-m").is_err());
        assert!(Cli::try_parse_from(["uringmq", "standalone", "-x"]).is_err());
    }
}
