#if Demo
import ArgumentParser

/// `CoroutineDemo feeds`: arguments, and what they mean.
struct FeedsCommand: ParsableCommand {
  static let configuration = CommandConfiguration(
    commandName: "feeds",
    abstract: "Read feeds (RSS 2.0, Atom) all at once, and store what is new.",
    discussion: """
      Without a source, a server is started on a free port of 127.0.0.1 that serves \(Catalogue.all.count) feeds with all \
      that real ones have: old encodings, missing fields, 20 MB of it, and faults. Feeds arrive, are parsed and stored at \
      the same time; one that fails keeps no other from being read. Progress goes to standard error, as bars on a \
      terminal and as lines elsewhere; the table at the end goes to standard output. `CoroutineDemo items` lists what is \
      stored.

      EXIT CODES
        0    all were read; of the built-in feeds, all but those that are there to fail
        20   some feeds could not be read, or not to their end
        21   none could be read
        64   a bad argument
        70   a mistake in this program
        71   the built-in server could not be started
        73   the database could not be opened, or not written
        74   the table could not be written
        130  interrupted by Ctrl-C (143: by SIGTERM); what had been read is stored
      """
  )

  @Argument(help: "Addresses (http, https) or files. (default: the built-in server's feeds)")
  var sources: [String] = []

  @OptionGroup
  var database: DatabaseOption

  @Option(parsing: .unconditional, help: ArgumentHelp("How many feeds to read at once.", valueName: "number"))
  var jobs = 8

  @Option(parsing: .unconditional, help: ArgumentHelp("How long each feed may take.", valueName: "seconds"))
  var timeout = 30.0

  @Option(
    parsing: .unconditional,
    help: ArgumentHelp("Read them again and again, with so long a pause. (default: once)", valueName: "seconds")
  )
  var watch: Double?

  func validate() throws {
    guard (1...1_000).contains(jobs) else { throw ValidationError("--jobs is a number from 1 to 1000, not \(jobs)") }
    guard timeout > 0, timeout <= 86_400 else {
      throw ValidationError("--timeout is a number of seconds above 0 and up to 86400, not \(timeout.readable)")
    }
    if let watch, !(watch > 0 && watch <= 86_400) {
      throw ValidationError("--watch is a number of seconds above 0 and up to 86400, not \(watch.readable)")
    }
  }

  func run() throws {
    if let status = FeedsRun(self).run() { throw ExitCode(status.code) }
  }
}

/// `--database`, as `feeds` and `items` have it.
struct DatabaseOption: ParsableArguments {
  @Option(
    help: ArgumentHelp("The database. (default: coroutine-demo/feeds.sqlite in your cache folder)", valueName: "path")
  )
  var database: String?

  func path() throws(StoreFailure) -> String {
    if let database { return database }
    return try Library.defaultPath()
  }
}
#endif
