#if Demo
import ArgumentParser

/// `CoroutineDemo chat`: arguments, and what they mean.
struct ChatCommand: ParsableCommand {
  static let configuration = CommandConfiguration(
    commandName: "chat",
    abstract: "Serve a chat with rooms, a line at a time.",
    discussion: """
      Any program that sends lines is a client: nc 127.0.0.1 7000. Lines that begin with / are commands, /help lists \
      them. Lines of the server begin with *, its refusals with ! and a code.

      A client that says nothing for --idle seconds is sent away; an empty line is a sign of life. So is one that reads \
      too slowly: at most --backlog lines wait for it. Ctrl-C, or SIGTERM, stops the server: it says good-bye to \
      every client, and ends when all have gone, or after \(ChatOptions().drain.readable). A second signal ends \
      it at once. SIGUSR2 writes to standard error where all coroutines are, in groups.

      EXIT CODES
        0    stopped by Ctrl-C or SIGTERM
        64   a bad argument
        70   a mistake in this program
        71   the address is in use, or is not this machine's
      """
  )

  @Option(help: ArgumentHelp("Where to listen: an address of this machine, or :: for all.", valueName: "address"))
  var host = "127.0.0.1"

  @Option(parsing: .unconditional, help: ArgumentHelp("The port; 0 for any that is free.", valueName: "number"))
  var port: UInt16 = 7_000

  @Option(parsing: .unconditional, help: ArgumentHelp("How many clients there may be at once.", valueName: "number"))
  var limit = ChatOptions().limit

  @Option(
    parsing: .unconditional,
    help: ArgumentHelp("How long a client may say nothing.", valueName: "seconds")
  )
  var idle = ChatOptions().idle

  @Option(
    parsing: .unconditional,
    help: ArgumentHelp("How many lines may wait for a client that does not read.", valueName: "number")
  )
  var backlog = ChatOptions().backlog

  @Option(
    name: .customLong("longest-line"),
    parsing: .unconditional,
    help: ArgumentHelp("How long a line may be.", valueName: "bytes")
  )
  var longestLine = ChatOptions().longestLine

  func validate() throws {
    guard (1...1_000_000).contains(limit) else {
      throw ValidationError("--limit is a number from 1 to 1000000, not \(limit)")
    }
    guard idle > 0, idle <= 86_400 else {
      throw ValidationError("--idle is a number of seconds above 0 and up to 86400, not \(idle.readable)")
    }
    guard (1...100_000).contains(backlog) else {
      throw ValidationError("--backlog is a number from 1 to 100000, not \(backlog)")
    }
    guard (64...65_536).contains(longestLine) else {
      throw ValidationError("--longest-line is a number of bytes from 64 to 65536, not \(longestLine)")
    }
  }

  func run() throws { ChatRun(self).run() }

  var options: ChatOptions {
    var options = ChatOptions()
    options.limit = limit
    options.idle = idle
    options.backlog = backlog
    options.longestLine = longestLine
    return options
  }
}
#endif
