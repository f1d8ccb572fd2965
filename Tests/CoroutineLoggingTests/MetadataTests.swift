#if Logging
import Coroutine
import CoroutineLogging
import Dispatch
import Logging
import Synchronization
import Testing

@Suite("The metadata of coroutines", .timeLimit(.minutes(10)))
struct MetadataTests {
  private let provider = Logger.MetadataProvider.coroutine

  @Test func `a line has the number and the name of the coroutine that logs it`() async throws {
    let provider = provider
    let job = co_launch(name: "order 7") { provider.get() }
    let metadata = try await job.value
    #expect(metadata == ["co.id": "\(job.id)", "co.name": "order 7"])
    let unnamed = co_launch { provider.get() }
    let withoutName = try await unnamed.value
    #expect(withoutName == ["co.id": "\(unnamed.id)"])
  }

  @Test func `a name that would forge lines is escaped, as it is in dumps`() async throws {
    let provider = provider
    let metadata = try await co_launch(name: "a\nb\u{1B}[31m") { provider.get() }.value
    #expect(metadata["co.name"] == #"a\nb\u{1B}[31m"#)
  }

  @Test func `coroutines that take turns on one thread do not see each other's metadata`() async throws {
    let provider = provider
    let queue = DispatchQueue(label: "one thread")
    let jobs = (0..<20).map { index in
      co_launch(on: queue, name: "\(index)") {
        for _ in 0..<50 {
          if provider.get()["co.name"] != "\(index)" { return false }
          try co_yield()
        }
        return true
      }
    }
    for job in jobs {
      let saw = try await job.value
      #expect(saw)
    }
  }

  @Test func `outside a coroutine, and in async code that a coroutine awaits, there is no metadata`() async throws {
    let provider = provider
    #expect(provider.get().isEmpty)
    let metadata = try await co_launch {
      try co_await { () async -> Logger.Metadata in
        await Task.yield()
        return provider.get()
      }
    }.value
    #expect(metadata.isEmpty)
  }

  @Test func `a logger adds it to what it logs`() async throws {
    let lines = Lines()
    let logger = Logger(label: "test") { _ in Recorder(lines: lines, metadataProvider: .coroutine) }
    try await co_launch(name: "worker") { logger.info("works") }.value
    logger.info("rests")
    #expect(lines.all == ["works worker", "rests"])
  }
}

private final class Lines: Sendable {
  private let lines = Mutex<[String]>([])
  var all: [String] { lines.withLock { $0 } }
  func add(_ line: String) { lines.withLock { $0.append(line) } }
}

private struct Recorder: LogHandler {
  let lines: Lines
  var metadata: Logger.Metadata = [:]
  var metadataProvider: Logger.MetadataProvider?
  var logLevel = Logger.Level.trace

  subscript(metadataKey key: String) -> Logger.Metadata.Value? {
    get { metadata[key] }
    set { metadata[key] = newValue }
  }

  func log(event: LogEvent) {
    lines.add(
      ([event.message.description] + [metadataProvider?.get()["co.name"]?.description].compactMap { $0 }).joined(
        separator: " "
      )
    )
  }
}
#endif
