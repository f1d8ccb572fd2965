#if Demo
import Coroutine
import Dispatch
import Foundation

/// One run of `feeds` as a process: starts server, store, readers and display, waits, and says how it ended.
///
/// Who runs where: the main thread starts everything and then blocks in `wait`, since it has nothing else to do.
/// Readers, display and the store's actor are coroutines of the runtime's shared scheduler; URLSession and the server
/// have threads of their own, and what blocks (the database, files, the terminal) runs on those of `co_blocking`.
struct FeedsRun {
  /// More than that is no feed.
  private static let longestFeed = 256_000_000
  /// For the database, the event loops, and connections that are closing.
  private static let otherDescriptors = 48
  private let command: FeedsCommand
  private let output = Output.standardOutput()
  private let errors = Output.standardError()

  init(_ command: FeedsCommand) {
    self.command = command
  }

  /// nil: all went well.
  func run() -> ExitStatus? {
    let cancellation = Cancellation()
    // Before the server and its threads; see Interrupts.
    let interrupts = Interrupts { cancellation.cancel($0) }
    return withExtendedLifetime(interrupts) {
      do {
        return try run(cancellation)
      } catch let failure as StoreFailure {
        return fail("\(failure)", .notStored)
      } catch let error as OutputError {
        return fail("\(error)", .notWritten)
      } catch {
        return fail("ended by something unforeseen: \(error)", .software)
      }
    }
  }

  private func run(_ cancellation: Cancellation) throws -> ExitStatus? {
    let store = Store(try Library(path: try command.database.path()))
    let server: LoopbackServer?
    do {
      server = try command.sources.isEmpty ? startServer() : nil
    } catch {
      return fail("the built-in server could not be started: \(error)", .noServer)
    }
    let jobs = readers(besidesServer: server != nil)
    let web = HTTPStreams(connections: jobs, longest: Self.longestFeed)
    defer {
      _ = web.close(within: 5)
      try? store.stop()
      if let server { try? blockingAwait { await server.stop() } }
    }
    let sources = server.map { Catalogue.sources(at: $0.url) } ?? Self.sources(command.sources)
    var status: ExitStatus?
    repeat {
      status = try round(of: sources, FeedOpener(web: web), jobs, store, cancellation)
    } while try pause(cancellation)
    return cancellation.reason.map { Self.status(of: $0) } ?? status
  }

  /// How many feeds to read at once: as many as asked for, or as there are descriptors for.
  private func readers(besidesServer hasServer: Bool) -> Int {
    // A connection and a file for what has arrived; the built-in server's end of the connection.
    let each = hasServer ? 3 : 2
    let most = max(1, (DescriptorLimit.left - Self.otherDescriptors) / each)
    guard most < command.jobs else { return command.jobs }
    errors.note(
      "CoroutineDemo: \(most) feeds at once in place of \(command.jobs), since this process may have "
        + "\(DescriptorLimit.count) open files; raise the limit with ulimit -n.\n"
    )
    return most
  }

  /// Reads all feeds once and shows what became of them.
  private func round(
    of sources: [Source],
    _ opener: FeedOpener,
    _ jobs: Int,
    _ store: Store,
    _ cancellation: Cancellation
  ) throws -> ExitStatus? {
    let news = Channel<FeedNews>(.unbounded)
    let reader = FeedReader(opener: opener, store: store, jobs: jobs, timeout: command.timeout, news: news)
    let display = FeedDisplay(output: errors, news: news)
    let shown = co_launch(name: "display") { try display.run(count: sources.count) }
    let reading = co_launch(name: "feeds") { try reader.read(sources) }
    cancellation.covers { reading.cancel($0) }
    let result = Result { try reading.blockingWait() }
    // All has been told: the display says it, and ends.
    news.close()
    let reports = try shown.blockingWait()
    if case .failure(let error) = result, !(error is Interrupted) { throw error }
    return try summarise(reports)
  }

  /// True: there is another round to come.
  ///
  /// A Ctrl-C ends the pause, and with it the rounds.
  private func pause(_ cancellation: Cancellation) throws -> Bool {
    guard let seconds = command.watch, cancellation.reason == nil else { return false }
    let pause = co_launch(name: "pause") { try co_delay(.seconds(seconds)) }
    cancellation.covers { pause.cancel($0) }
    return (try? pause.blockingWait()) != nil
  }

  private func summarise(_ reports: [FeedReport?]) throws -> ExitStatus? {
    let begun = reports.compactMap(\.self)
    let failures = begun.compactMap(\.failure)
    for failure in failures { errors.note("CoroutineDemo: \(failure).\n") }
    if begun.count < reports.count { errors.note("\(reports.count - begun.count) feeds were not begun.\n") }
    try output.write(FeedTable.text(begun))
    if failures.contains(where: { if case .notStored = $0 { true } else { false } }) { return .notStored }
    let unexpected = begun.filter { $0.failure != nil && !Catalogue.isFaulty($0.name) }
    if unexpected.isEmpty { return nil }
    return unexpected.count == begun.count ? .noFeed : .someFeedsFailed
  }

  private func startServer() throws -> LoopbackServer {
    LoopbackServer.bypassProxies()
    return try blockingAwait { try await LoopbackServer.start { await FeedRoutes().add(to: $0) } }
  }

  /// Each feed once, however often it is named.
  private static func sources(_ arguments: [String]) -> [Source] {
    var names: Set<String> = []
    return arguments.map { Source(argument: $0) }.filter { names.insert($0.name).inserted }
  }

  private static func status(of reason: any Error) -> ExitStatus {
    (reason as? Interrupted).map { .signalled($0.signal) } ?? .software
  }

  private func fail(_ sentence: String, _ status: ExitStatus) -> ExitStatus {
    errors.note("CoroutineDemo: \(sentence).\n")
    return status
  }
}
#endif
