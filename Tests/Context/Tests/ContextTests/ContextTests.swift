import Coroutine
import Dispatch
import Logging
import ServiceContextModule
import Synchronization
import Testing

/// The identity of a request, as a server's middleware binds it.
enum Request {
  @TaskLocal static var id: String?
}

/// What a tracer binds.
private enum TraceKey: ServiceContextKey {
  typealias Value = String
}

extension ServiceContext {
  fileprivate var trace: String? {
    get { self[TraceKey.self] }
    set { self[TraceKey.self] = newValue }
  }
}

/// The lines of one test: each message with the metadata that the provider has added.
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

  func log(
    level: Logger.Level,
    message: Logger.Message,
    metadata: Logger.Metadata?,
    source: String,
    file: String,
    function: String,
    line: UInt
  ) {
    let provided = metadataProvider?.get() ?? [:]
    lines.add("\(message) request=\(provided["request"] ?? "none") trace=\(provided["trace"] ?? "none")")
  }
}

private func logger(_ lines: Lines) -> Logger {
  let provider = Logger.MetadataProvider {
    var metadata: Logger.Metadata = [:]
    if let id = Request.id { metadata["request"] = .string(id) }
    if let trace = ServiceContext.current?.trace { metadata["trace"] = .string(trace) }
    return metadata
  }
  return Logger(label: "test", factory: { _ in Recorder(lines: lines, metadataProvider: provider) })
}

/// Calls `body` as a server calls a handler: with the request's identity and trace bound.
private func serving(_ id: String, _ body: () async throws -> Void) async rethrows {
  var context = ServiceContext.topLevel
  context.trace = "t-\(id)"
  try await ServiceContext.withValue(context) { try await Request.$id.withValue(id) { try await body() } }
}

@Suite(.timeLimit(.minutes(10)))
struct LoggerTests {
  @Test func `a handler's logger has the request's metadata in every coroutine below it`() async throws {
    let lines = Lines()
    let log = logger(lines)
    try await serving("7") {
      try await co_launch {
        log.info("coroutine")
        try co_delay(.milliseconds(1))
        log.info("after a wait")
        try co_scope { scope in scope.launch { log.info("child") } }
        try co_await { log.info("async code") }
        try co_await {
          await Task.yield()
          log.info("async code after a suspension")
        }
        try co_blocking { log.info("blocking work") }
        try co_switch(to: DispatchQueue(label: "other"))
        log.info("another queue")
      }.value
    }
    #expect(lines.all.count == 7)
    for line in lines.all { #expect(line.hasSuffix(" request=7 trace=t-7"), "\(line)") }
  }

  @Test func `a generator's logger has the metadata of the request that has created it, in every step`() async throws {
    let lines = Lines()
    let log = logger(lines)
    let queue = DispatchQueue(label: "generator")
    try await serving("7") {
      try await co_launch(on: queue) {
        let numbers = Generator<Int, Void, Void> { yielder in
          log.info("first step")
          try yielder(1)
          log.info("second step")
          try co_await {
            await Task.yield()
            log.info("async code of a step")
          }
          try yielder(2)
        }
        // A step in another request's binding.
        try Request.$id.withValue("8") {
          #expect(try numbers.next() == 1)
          #expect(try numbers.next() == 2)
          log.info("who steps")
        }
      }.value
    }
    #expect(
      lines.all == [
        "first step request=7 trace=t-7", "second step request=7 trace=t-7",
        "async code of a step request=7 trace=t-7", "who steps request=8 trace=t-7",
      ]
    )
  }

  @Test func `an actor's logger has the metadata of the request that has created it, whoever sends`() async throws {
    let lines = Lines()
    let log = logger(lines)
    let received = Channel<Int>(.unbounded)
    var made: ActorRef<Int>?
    try await serving("7") {
      made = co_actor(of: Int.self) { mailbox in
        while let message = try mailbox.receive() {
          log.info("message \(message)")
          try co_await { log.info("async code") }
          try received.send(message)
        }
      }
    }
    let actor = try #require(made)
    try await serving("8") {
      try actor.tell(1)
      try await co_launch {
        _ = try received.receive()
        try actor.tell(2)
        _ = try received.receive()
      }.value
    }
    actor.stop()
    #expect(
      lines.all == ["message 1", "async code", "message 2", "async code"].map { "\($0) request=7 trace=t-7" }
    )
  }

  @Test func `requests that share a queue never see each other's metadata`() async throws {
    let (lines, queue) = (Lines(), DispatchQueue(label: "shared"))
    let log = logger(lines)
    try await withThrowingTaskGroup(of: Void.self) { group in
      for number in 0..<50 {
        group.addTask {
          try await serving("\(number)") {
            try await co_launch(on: queue) {
              for _ in 0..<20 {
                try co_yield()
                log.info("\(number)")
                try co_await {
                  await Task.yield()
                  log.info("\(number)")
                }
              }
            }.value
          }
        }
      }
      try await group.waitForAll()
    }
    #expect(lines.all.count == 2_000)
    for line in lines.all {
      let number = line.prefix { $0 != " " }
      #expect(line == "\(number) request=\(number) trace=t-\(number)")
    }
  }

  @Test func `what a coroutine binds for its own calls ends with them`() async throws {
    let lines = Lines()
    let log = logger(lines)
    try await co_launch {
      try Request.$id.withValue("inner") {
        log.info("bound")
        try co_yield()
        try co_launch { log.info("launched inside") }.join()
      }
      log.info("after")
    }.value
    #expect(
      lines.all == [
        "bound request=inner trace=none", "launched inside request=inner trace=none", "after request=none trace=none",
      ]
    )
  }
}
