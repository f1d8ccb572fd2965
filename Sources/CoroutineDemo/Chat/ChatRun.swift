#if Demo
import Coroutine
import CoroutineNet
import Foundation

/// One run of `chat` as a process.
///
/// The server is the main coroutine: `co_main` ends the process, and tells the coroutine to finish on Ctrl-C.
struct ChatRun: Sendable {
  /// For the listener, the runtime's pollers, the standard files, and clients that are told that there is no room.
  private static let otherDescriptors = 64
  private let command: ChatCommand
  private let errors = Output.standardError()
  /// Finds the addresses of a name; tests replace it.
  var resolve: @Sendable (String, UInt16) throws -> [SocketAddress] = { try SocketAddress.resolve($0, port: $1) }

  init(_ command: ChatCommand) { self.command = command }

  func run() -> Never {
    let options = options
    // kill -USR2 tells the operator where each client's coroutine is.
    CoroutineRuntime.dumpOnSignal(.stacks)
    // The clients get all of the drain before anything is cancelled.
    co_main(within: options.drain + .seconds(1)) {
      guard let status = try serve(options) else { return }
      exit(status.code)
    }
  }

  /// As many clients as were asked for, or as there are descriptors for.
  private var options: ChatOptions {
    var options = command.options
    let most = max(1, DescriptorLimit.left - Self.otherDescriptors)
    guard most < options.limit else { return options }
    errors.note(
      "CoroutineDemo: at most \(most) clients in place of \(options.limit), since this process may have "
        + "\(DescriptorLimit.count) open files; raise the limit with ulimit -n.\n"
    )
    options.limit = most
    return options
  }

  /// Serves until the coroutine is told to stop; nil: all went well.
  ///
  /// Throws only the cancellation error, with which `co_main` reports the signal.
  func serve(_ options: ChatOptions) throws -> ExitStatus? {
    let server = ChatServer(options) { [errors] in errors.note("CoroutineDemo: \($0)\n") }
    do {
      guard let address = try address() else {
        errors.note("Stopped before \(command.host) was found.\n")
        return nil
      }
      let tally = try server.run(at: address) { [errors] address in
        let port = address.port ?? 0
        errors.note("Listening at \(address). Clients: nc \(command.host) \(port). Ctrl-C stops it.\n")
      }
      errors.note(
        "Stopped: \(tally.clients.grouped) clients were here, \(tally.mostAtOnce.grouped) at once; they were sent "
          + "\(tally.lines.grouped) lines. \(tally.tooSlow.grouped) read too slowly.\n"
      )
      return nil
    } catch let error as CancellationError {
      throw error
    } catch let error as NetError {
      errors.note("CoroutineDemo: \(error).\n")
      return .noServer
    } catch {
      errors.note("CoroutineDemo: ended by something unforeseen: \(error).\n")
      return .software
    }
  }

  /// The address to listen at; nil if the server is told to stop first, since a name may take the resolver long.
  private func address() throws -> SocketAddress? {
    try co_scope { scope in
      let stopping = co_stopping
      let lookup = scope.launch(name: "lookup") { try resolve(command.host, command.port) }
      defer { lookup.cancel() }
      return try co_select {
        lookup.onAwait { try $0.get().first }
        stopping.onAwait { _ in nil }
      }
    }
  }
}
#endif
