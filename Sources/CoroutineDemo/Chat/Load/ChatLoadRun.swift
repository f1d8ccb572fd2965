#if Demo
import Coroutine
import CoroutineNet
import Foundation

/// One run of `chat-load` as a process.
///
/// All of it is one main coroutine: `co_main` ends the process, and cancels the coroutine on Ctrl-C.
struct ChatLoadRun: Sendable {
  /// For the runtime's pollers, the standard files, and what the system's libraries open.
  private static let otherDescriptors = 48
  private let plan: LoadPlan
  private let server: HostAndPort?
  private let output = Output.standardOutput()
  private let errors = Output.standardError()

  init(_ command: ChatLoadCommand) {
    plan = command.plan
    server = command.server.flatMap { HostAndPort($0) }
  }

  func run() -> Never {
    co_main(within: .zero) {
      guard let status = try main() else { return }
      exit(status.code)
    }
  }

  /// nil: all went well.
  private func main() throws -> ExitStatus? {
    if let sentence = tooFewDescriptors { return fail(sentence, .usage) }
    do {
      let result = try server.map { try measure(at: $0) } ?? measureOwnServer()
      return try summarise(result)
    } catch let error as CancellationError {
      errors.note("CoroutineDemo: interrupted before the end; nothing was checked.\n")
      throw error
    } catch let failure as NoServer {
      return fail("the built-in server could not be started: \(failure.error)", .noServer)
    } catch let error as NetError {
      return fail("\(error)", .clientsFailed)
    } catch let error as OutputError {
      return fail("\(error)", .notWritten)
    } catch {
      return fail("ended by something unforeseen: \(error)", .software)
    }
  }

  private struct NoServer: Error { var error: any Error }

  /// What to say if there are too many clients for this process.
  private var tooFewDescriptors: String? {
    let each = server == nil ? 2 : 1
    let most = (DescriptorLimit.left - Self.otherDescriptors) / each
    guard plan.clients > most else { return nil }
    return "\(plan.clients.grouped) clients need \((each * plan.clients).grouped) descriptors, and this process may "
      + "have \(DescriptorLimit.count.grouped); use --clients \(max(1, most)), or raise the limit with ulimit -n"
  }

  /// Runs a server beside the clients, which ends after them.
  private func measureOwnServer() throws -> LoadResult {
    let chat = ChatServer(plan.serverOptions) { [errors] in errors.note("CoroutineDemo: \($0)\n") }
    return try co_scope { scope in
      let address = Promise<SocketAddress>()
      let serving = scope.launch(name: "server") {
        do {
          _ = try chat.run(at: .loopback(port: 0)) { address.fulfill($0) }
        } catch {
          address.reject(error)
        }
      }
      let bound: SocketAddress
      do {
        bound = try co_await(address)
      } catch let error as NetError {
        throw NoServer(error: error)
      }
      let result = try measure { try Connection.connect(to: bound) }
      serving.cancel()
      return result
    }
  }

  private func measure(at server: HostAndPort) throws -> LoadResult {
    // Once, not for each client.
    let addresses = try SocketAddress.resolve(server.host, port: server.port)
    return try measure {
      var failure: NetError?
      for address in addresses {
        do { return try Connection.connect(to: address) } catch let error as NetError { failure = failure ?? error }
      }
      throw failure ?? .closed
    }
  }

  private func measure(_ connect: @escaping @Sendable () throws -> Connection) throws -> LoadResult {
    let load = ChatLoad(plan, connect: connect)
    return try co_scope { scope in
      let display = scope.launch(name: "display") {
        try LoadDisplay(output: errors, plan: plan, counters: load.counters).run()
      }
      defer { display.cancel() }
      return try load.run()
    }
  }

  private func summarise(_ result: LoadResult) throws -> ExitStatus? {
    let columns = output.display == .text ? 80 : output.size.columns
    try co_blocking { [output] in try output.write(LoadSummary.text(result, columns: columns)) }
    // The same reason for a thousand clients is said once.
    var reasons: [String] = []
    for report in result.failures {
      let reason = report.failure.map { "\($0)" } ?? ""
      if !reasons.contains(reason) { reasons.append(reason) }
    }
    for reason in reasons.prefix(5) { errors.note("CoroutineDemo: \(reason).\n") }
    if !result.isComplete { return .notDelivered }
    return result.failures.isEmpty ? nil : .clientsFailed
  }

  private func fail(_ sentence: String, _ status: ExitStatus) -> ExitStatus {
    errors.note("CoroutineDemo: \(sentence).\n")
    return status
  }
}
#endif
