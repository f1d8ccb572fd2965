import Dispatch
import Glibc

@testable import Coroutine
@testable import CoroutineNet
@testable import CoroutineTesting

/// A way by which a text of the user's gets into a text of the library.
///
/// The metadata of CoroutineLogging is tested in its own target, and the report of the C core, with names that no Swift
/// layer has escaped, in CCoroutineTests.
struct TextRoute: Sendable, CustomStringConvertible {
  let description: String
  /// What the text must contain: the escaped form.
  let shown: String
  /// The number of lines; nil for the standard error of a process that has died, and for tables.
  let lines: Int?
  let text: @Sendable (Hostile.Length) async throws -> String

  init(
    _ description: String,
    _ shown: String,
    lines: Int? = 1,
    _ text: @escaping @Sendable (Hostile.Length) async throws -> String
  ) {
    (self.description, self.shown, self.lines, self.text) = (description, shown, lines, text)
  }

  static let all = dumps + reports + worlds + sockets + errors

  // MARK: Dumps

  private static let dumps: [Self] = [
    Self("dump: a name", " \"\(Hostile.name)", lines: 3) { try await dump(name: $0.text) },
    Self("dump: the label of a queue", #" on queue a\nb\u{1B}[31m, launched at "#, lines: 3) { _ in
      try await dump(label: "queue a\nb\u{1B}[31m")
    },
    Self("dump: the file of a launch", #"launched at Shop/\u{9B}\n.swift:7"#, lines: 3) { _ in
      try await dump(DispatchQueue(label: "dumps")) { co_launch(name: "x", file: "Shop/\u{9B}\n.swift", line: 7) {} }
    },
    Self("dump: the name of an awaited coroutine", " \"\(Hostile.name)", lines: 4) { length in
      try await onSerialQueue {
        let gate = Gate()
        let awaited = co_launch(name: length.text) { try gate.pass() }
        let waiting = co_launch(name: "waits") { try awaited.join() }
        try co_yield()
        try co_yield()
        defer { gate.open() }
        return dumpOfOwnQueue().replacing("\"waits\" waiting for a job (#\(awaited.id)", with: "")
      }
    },
    Self("dump: the name of a lock's owner", " \"\(Hostile.name)", lines: 4) { length in
      try await onSerialQueue {
        let (lock, gate) = (FairMutex(), Gate())
        let owner = co_launch(name: length.text) { try lock.withLock { try gate.pass() } }
        try co_yield()
        let waiter = co_launch(name: "waits") { try lock.withLock {} }
        try co_yield()
        let dump = dumpOfOwnQueue()
        gate.open()
        try waiter.join()
        try owner.join()
        return dump
      }
    },
  ]

  private static func dump(name: String = "x", label: String = "dumps") async throws -> String {
    try await dump(DispatchQueue(label: label)) { co_launch(name: name) {} }
  }

  private static func dump(_ queue: DispatchQueue, _ launch: @escaping @Sendable () -> Job<Void>) async throws -> String
  {
    try await co_launch(on: queue, name: "dumper") {
      let job = launch()
      let dump = dumpOfOwnQueue()
      try job.join()
      return dump
    }.value
  }

  // MARK: Reports

  private static let reports: [Self] = [
    Self("the origin that the hook of unhandled errors gets", "\"\(Hostile.name)") { length in
      co_launch(name: length.text) {}.summary
    },
    Self("standard error: an unhandled error", "Coroutine: unhandled error in \"\(Hostile.name)", lines: nil) {
      try await HostileReport.unhandledError.text($0)
    },
    Self("standard error: an unhandled error's text", "): \(Hostile.line)", lines: nil) {
      try await HostileReport.unhandledError.text($0)
    },
    Self("standard error: the error of co_main", "Coroutine: the program has ended with an error: \(Hostile.line)") {
      try await HostileReport.main.text($0)
    },
    Self("standard error: the third signal", "Running: #", lines: nil) { try await HostileReport.thirdSignal.text($0) },
    Self("standard error: the third signal's coroutine", " \"\(Hostile.name)", lines: nil) {
      try await HostileReport.thirdSignal.text($0)
    },
    Self("standard error: a misuse", "Fatal error: no host is called \(Hostile.line)", lines: nil) {
      try await HostileReport.misuse.text($0)
    },
    Self("standard error: an overflow of a stack", "coroutine \"\(Hostile.name)", lines: nil) {
      try await HostileReport.overflow.text($0)
    },
    Self("a stall", "\"\(Hostile.name)", lines: nil) { try await HostileReport.stall.text($0) },
  ]

  // MARK: Worlds and explorations

  private static let worlds: [Self] = [
    Self("world: a coroutine that is left", " \"\(Hostile.name)", lines: nil) { length in
      try failure { co_launch(name: length.text) { try waitForCancellation() } }
    },
    Self("world: a deadlock", " \"\(Hostile.name)", lines: nil) { length in
      try failure { try co_launch(name: length.text) { try waitForCancellation() }.join() }
    },
    Self("world: a wait for the real world", "\"\(Hostile.name)", lines: nil) { length in
      let pipe = PipePair()
      return try failure { try co_launch(name: length.text) { try co_untilReadable(pipe.reader) }.join() }
    },
    Self("exploration: the error", "\(Hostile.line)", lines: nil) { length in try failure { throw length.failure } },
    Self("exploration: the title of a column", " \"\(Hostile.name)", lines: nil) { length in
      try failure { try co_launch(name: length.text) { throw CoroutineError.abandoned }.join() }
    },
    Self("exploration: a token", "\"\(Hostile.name)") { "\(explore(.replay($0.text)) {}.failure!)" },
    Self("network: a host", "no host is called \(Hostile.line)") { length in
      let failure = explore(.inOrder) { throw World.UnknownHostError(name: length.text) }.failure
      return "\(failure!.error)"
    },
  ]

  private static func failure(_ body: @escaping @Sendable () throws -> Void) throws -> String {
    explore(.inOrder, body).failure?.description ?? "no failure"
  }

  // MARK: Sockets

  private static let sockets: [Self] =
    [
      Self("socket: a path", #"/run/a\nb\u{1B}[31m\u{202E}"#) { _ in
        "\(try SocketAddress.unix("/run/a\nb\u{1B}[31m\u{202E}"))"
      },
      Self("socket: an abstract name", #"@a\nb\u{1B}[31m\u{202E}"#) { _ in
        "\(try SocketAddress.unix("@a\nb\u{1B}[31m\u{202E}"))"
      },
      Self("socket: the path in an error", #"connecting to /run/a\nb: "#) { _ in
        "\(NetError(.system, code: ENOENT, "connecting to", try .unix("/run/a\nb")))"
      },
      Self("socket: a path that is too long", #""/run/a\nb\u{1B}xxxx"#) { _ in
        error { try SocketAddress.unix("/run/a\nb\u{1B}" + String(repeating: "x", count: 1_000_000)) }
      },
      Self("socket: an IPv4 address", "\"\(Hostile.name)") { length in
        error { try SocketAddress.ipv4(length.text, port: 1) }
      },
      Self("socket: an IPv6 address", "\"\(Hostile.name)") { length in
        error { try SocketAddress.ipv6(length.text, port: 1) }
      },
      Self("socket: an interface", #""fe80::1%a\nb\u{1B}"#) { _ in
        error { try SocketAddress.ipv6("fe80::1%a\nb\u{1B}", port: 1) }
      },
      Self("socket: a name that cannot be one", "resolving: \"\(Hostile.name)") { length in
        try await onCoroutine { error { try SocketAddress.resolve(length.text, port: 1) } }
      },
    ]
    + [EAI_NONAME, EAI_AGAIN, EAI_SYSTEM, EAI_FAIL].map { code in
      Self("socket: a name without an address (\(code))", "\"\(Hostile.name)") { length in
        "\(NetError(.unresolved(length.text, code), code: EIO, "resolving"))"
      }
    }

  private static func error<R>(_ body: () throws -> R) -> String {
    do { return "no error: \(try body())" } catch { return "\(error)" }
  }

  // MARK: Errors

  private static let errors: [Self] = [
    Self("ChannelClosedError: the cause", Hostile.line) { "\(ChannelClosedError(cause: $0.failure))" },
    Self("AggregateError: the only error", Hostile.line) { "\(AggregateError(errors: [$0.failure]))" },
    Self("AggregateError: one of two", "(2) \(Hostile.line)") {
      "\(AggregateError(errors: [CancellationError(), $0.failure]))"
    },
    Self("ResumerUsedTwiceError: the late result", Hostile.line) { "\(ResumerUsedTwiceError(late: $0.text))" },
    Self("ReplyUsedTwiceError: the late answer", Hostile.line) { "\(ReplyUsedTwiceError(late: $0.text))" },
    Self("PromiseValidationError: the value", Hostile.line) { "\(PromiseValidationError(value: $0.text))" },
    Self("PromiseValueMissingError: the value", Hostile.line) {
      "\(PromiseValueMissingError(value: $0.text, wanted: Int.self))"
    },
    Self("PromiseMemberError: the key", "\(Hostile.line)") {
      "\(PromiseMemberError(key: $0.text, error: CancellationError()))"
    },
    Self("PromiseMemberError: the error", "k has failed: \(Hostile.line)") {
      "\(PromiseMemberError(key: "k", error: $0.failure))"
    },
    Self("ActorRegistry.NameTakenError: the name", "\"\(Hostile.name)") {
      "\(ActorRegistry.NameTakenError(name: $0.text))"
    },
    Self("ActorMonitor.LinkedActorError: the name", "\"\(Hostile.name)") {
      "\(ActorMonitor.LinkedActorError(end: end($0)))"
    },
    Self("ActorMonitor.LinkedActorError: the error", "has failed: \(Hostile.line)") {
      "\(ActorMonitor.LinkedActorError(end: end($0)))"
    },
    Self("Supervisor.RestartLimitError: the name", "\"\(Hostile.name)") {
      "\(Supervisor.RestartLimitError(last: end($0), limit: RestartLimit()))"
    },
    Self("Supervisor.RestartLimitError: the error", "failed: \(Hostile.line)") {
      "\(Supervisor.RestartLimitError(last: end($0), limit: RestartLimit()))"
    },
    Self("wouldDeadlock: a reason of the user's", Hostile.line) {
      "\(CoroutineError.wouldDeadlock(because: CoroutineError.Deadlock($0.text)))"
    },
    Self("outOfStacks: a limit of the user's", Hostile.line) { "\(CoroutineError.outOfStacks($0.text))" },
    Self("Promise: its value", "(fulfilled: \(Hostile.line)") { "\(Promise.value($0.text))" },
    Self("Promise: its error", "(rejected: \(Hostile.line)") {
      let rejected = Promise<Int>.failure($0.failure)
      rejected.catch { _ in }
      return "\(rejected)"
    },
  ]

  private static func end(_ length: Hostile.Length) -> ActorEnd {
    ActorEnd(id: 1, name: length.text, exit: .failed(length.failure))
  }
}
