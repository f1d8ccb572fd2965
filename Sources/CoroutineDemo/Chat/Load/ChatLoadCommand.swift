#if Demo
import ArgumentParser

/// `CoroutineDemo chat-load`: arguments, and what they mean.
struct ChatLoadCommand: ParsableCommand {
  static let configuration = CommandConfiguration(
    commandName: "chat-load",
    abstract: "Load a chat server, and check that it loses, doubles and reorders nothing.",
    discussion: """
      Without --server, a server is started on a free port of 127.0.0.1, in this process. The clients join rooms, and \
      each sends its messages to its room. Every member of the room must get every message once, and each sender's \
      messages in order. Progress goes to standard error, the result to standard output: what was delivered, what was \
      not, and how long it took, as a plot.

      EXIT CODES
        0    every message came to every member once and in order
        30   a message was lost, doubled or out of order
        31   a client could not connect, or lost its connection
        64   a bad argument, or more clients than this process may have descriptors for
        70   a mistake in this program
        71   the built-in server could not be started
        74   the result could not be written
        130  interrupted by Ctrl-C (143: by SIGTERM)
      """
  )

  @Option(parsing: .unconditional, help: ArgumentHelp("How many clients there are.", valueName: "number"))
  var clients = LoadPlan().clients

  @Option(parsing: .unconditional, help: ArgumentHelp("How many messages each client sends.", valueName: "number"))
  var messages = LoadPlan().messages

  @Option(parsing: .unconditional, help: ArgumentHelp("How many clients share a room.", valueName: "number"))
  var room = LoadPlan().roomSize

  @Option(
    parsing: .unconditional,
    help: ArgumentHelp("How many of its messages a client may have under way.", valueName: "number")
  )
  var window = LoadPlan().window

  @Option(help: ArgumentHelp("Another server, on this or another machine.", valueName: "host:port"))
  var server: String?

  @Option(
    parsing: .unconditional,
    help: ArgumentHelp("After how long a silence what is missing is taken for lost.", valueName: "seconds")
  )
  var timeout = 10.0

  func validate() throws {
    guard (1...20_000).contains(clients) else {
      throw ValidationError("--clients is a number from 1 to 20000, not \(clients)")
    }
    guard (1...1_000_000).contains(messages) else {
      throw ValidationError("--messages is a number from 1 to 1000000, not \(messages)")
    }
    guard (1...1_000).contains(room) else { throw ValidationError("--room is a number from 1 to 1000, not \(room)") }
    guard (1...100).contains(window) else { throw ValidationError("--window is a number from 1 to 100, not \(window)") }
    guard timeout > 0, timeout <= 86_400 else {
      throw ValidationError("--timeout is a number of seconds above 0 and up to 86400, not \(timeout.readable)")
    }
    if let server, HostAndPort(server) == nil {
      throw ValidationError("--server is a host and a port, as in 127.0.0.1:7000 or [::1]:7000, not '\(server)'")
    }
  }

  func run() throws { ChatLoadRun(self).run() }

  var plan: LoadPlan {
    var plan = LoadPlan()
    plan.clients = clients
    plan.messages = messages
    plan.roomSize = room
    plan.window = window
    plan.timeout = .seconds(timeout)
    return plan
  }
}
#endif
