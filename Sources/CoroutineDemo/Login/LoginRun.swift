#if Demo
import Coroutine
import Dispatch
import Foundation

/// One run of the login as a process: starts the server, the job and the signal handling, waits, and says how it ended.
///
/// Who runs where: the main thread starts everything and then blocks in `wait`, since it has nothing else to do. The
/// job runs on the runtime's shared scheduler; URLSession's callbacks, the effect and the server have threads of their
/// own.
struct LoginRun {
  private let command: LoginCommand
  private let output = Output.standardOutput()
  private let errors = Output.standardError()

  init(_ command: LoginCommand) {
    self.command = command
  }

  /// nil: all went well.
  func run() -> ExitStatus? {
    let cancellation = Cancellation()
    // Before the server and its threads; see Interrupts.
    let interrupts = Interrupts { [errors] interrupted in
      // On a terminal the progress list shows it, and a line in between would break the list.
      if errors.display == .text { errors.note("Interrupted: cancelling.\n") }
      cancellation.cancel(interrupted)
    }
    return withExtendedLifetime(interrupts) { run(cancellation) }
  }

  private func run(_ cancellation: Cancellation) -> ExitStatus? {
    let server: LoopbackServer?
    do {
      server = try command.site == nil ? startServer() : nil
    } catch {
      errors.note("CoroutineDemo: the built-in server could not be started: \(error)\n")
      return .noServer
    }
    guard let url = command.site ?? server?.url else { preconditionFailure("there is a site or a server") }

    let client = HTTPSession()
    let progress = Progress<LoginStep>(on: errors)
    let cleanedUp = DispatchSemaphore(value: 0)
    let flow = LoginFlow(
      site: Site(url: url, client: client),
      account: command.credentials,
      timeout: .seconds(command.timeout),
      progress: progress,
      show: { [output] profile, art in
        let size = output.size
        try output.write(
          Card(profile: profile, art: art).text(on: output.display, columns: size.columns, rows: size.rows)
        )
      },
      cleanUp: { [errors] in
        Self.cleanUp(progress, client, server, errors)
        cleanedUp.signal()
      }
    )
    let result = result(of: flow, cancellation)
    cleanedUp.wait()
    return report(result, stoppedAt: progress.unfinished)
  }

  /// Starts the job in the style asked for and waits for its end.
  private func result(of flow: LoginFlow, _ cancellation: Cancellation) -> Result<Void, any Error> {
    switch command.style {
    case .coroutine:
      let job = flow.start()
      cancellation.covers { job.cancel($0) }
      return Result { try job.blockingWait() }
    case .callbacks:
      let run = flow.startWithCallbacks()
      cancellation.covers { run.cancel($0) }
      return Result { try run.wait() }
    }
  }

  private func startServer() throws -> LoopbackServer {
    LoopbackServer.bypassProxies()
    let routes = LoginRoutes(Misbehaviour(fault: command.failAt, latency: .milliseconds(command.latency)))
    // The server gives up on slow handlers, and a latency asked for is no reason to.
    return try blockingAwait { [command] in
      try await LoopbackServer.start(timeout: Double(command.latency) / 1000 + 60) { await routes.add(to: $0) }
    }
  }

  /// What the job's `finally` does: the display goes, requests end, the port is free again.
  private static func cleanUp(
    _ progress: Progress<LoginStep>,
    _ client: HTTPSession,
    _ server: LoopbackServer?,
    _ errors: Output
  ) {
    progress.dismiss()
    var done = [client.close(within: 5) ? "no request in flight" : "a request is still in flight"]
    if let server {
      try? blockingAwait { await server.stop() }
      done.append("built-in server stopped")
    }
    errors.note("Cleaned up: \(done.joined(separator: ", ")).\n")
  }

  private func report(_ result: Result<Void, any Error>, stoppedAt step: LoginStep?) -> ExitStatus? {
    guard case .failure(let error) = result else { return nil }
    let (sentence, status) = Self.explain(error, timeout: command.timeout, stoppedAt: step)
    errors.note("CoroutineDemo: \(sentence)\n")
    return status
  }

  /// What is said about an error, and the exit code.
  static func explain(_ error: any Error, timeout: Double, stoppedAt step: LoginStep?) -> (String, ExitStatus) {
    switch error {
    case let failure as StepFailure:
      if case HTTPError.unreachable = failure.cause {
        return ("\(failure). Is the site's address right, and the site running?", .unreachable)
      }
      return ("\(failure).", .stepFailed(failure.step.number))
    case is TimeoutError:
      let place = step.map { " while \($0.title.prefix(1).lowercased() + $0.title.dropFirst())" } ?? ""
      return ("timed out\(place): \(timeout) s were not enough. Give more with --timeout.", .timedOut)
    case let interrupted as Interrupted:
      return ("interrupted.", .signalled(interrupted.signal))
    default:
      return ("ended by something unforeseen: \(error).", .software)
    }
  }
}
#endif
