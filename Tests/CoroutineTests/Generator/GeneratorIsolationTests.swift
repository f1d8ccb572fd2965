import Coroutine
import Dispatch
import Testing

private enum Request {
  @TaskLocal static var user = "nobody"
}

private let tenant = CoroutineLocal(default: "none")

/// Body, consumer and thread each keep the state of their own flow of control.
@Suite("Generators, separation of body and consumer", .timeLimit(.minutes(10)))
struct GeneratorIsolationTests {
  private final class Box: @unchecked Sendable {
    // Sound because one flow of control at a time touches it.
    var count = 0
    var names: [String] = []
  }

  @inline(never)
  private static func change<Value>(_ value: inout Value, _ body: (inout Value) throws -> Void) rethrows {
    try body(&value)
  }

  /// Binds both kinds of local over each of its yields.
  private func binding(_ name: String) -> Generator<String, Never, Void> {
    co_sequence { yield in
      for round in 0..<3 {
        try Request.$user.withValue("\(name)\(round)") {
          try tenant.withValue("\(name)\(round)") {
            try yield("\(Request.user) \(tenant.value)")
            try yield("\(Request.user) \(tenant.value)")
          }
        }
        try yield("\(Request.user) \(tenant.value)")
      }
    }
  }

  private func pullInTurn() -> [String] {
    let (a, b) = (binding("a"), binding("b"))
    var seen: [String] = []
    for _ in 0..<9 {
      for generator in [a, b] {
        seen.append(generator.next() ?? "end")
        #expect(Request.user == "consumer")
        #expect(tenant.value == "consumer")
      }
    }
    return seen
  }

  private var expected: [String] {
    (0..<3).flatMap { round in
      ["a\(round) a\(round)", "b\(round) b\(round)", "a\(round) a\(round)", "b\(round) b\(round)"]
        + Array(repeating: "consumer consumer", count: 2)
    }
  }

  @Test func `bindings of two bodies and of the consumer do not mix, in async code`() {
    let seen = Request.$user.withValue("consumer") { tenant.withValue("consumer") { pullInTurn() } }
    #expect(seen == expected)
    #expect(Request.user == "nobody")
    #expect(tenant.value == "none")
  }

  @Test func `bindings of two bodies and of the consumer do not mix, in a coroutine`() async throws {
    let seen = try await onCoroutine {
      Request.$user.withValue("consumer") { tenant.withValue("consumer") { pullInTurn() } }
    }
    #expect(seen == expected)
  }

  @Test func `bindings of two bodies and of the consumer do not mix, on a plain thread`() async throws {
    let seen = try await onOwnThread {
      Request.$user.withValue("consumer") { tenant.withValue("consumer") { pullInTurn() } }
    }
    #expect(seen == expected)
  }

  @Test func `the body keeps the bindings of its creation, also after its creator has left them`() {
    let generator = tenant.withValue("made") {
      Request.$user.withValue("maker") {
        co_sequence(of: String.self) { yield in while true { try yield("\(Request.user) \(tenant.value)") } }
      }
    }
    #expect(generator.next() == "maker made")
    #expect(tenant.withValue("second") { generator.next() } == "maker made")
    #expect(Request.$user.withValue("third") { generator.next() } == "maker made")
  }

  @Test func `a generator passes between threads inside an inout access and two bindings`() async throws {
    let box = Box()
    let generator = co_sequence(of: String.self) { yield in
      try Request.$user.withValue("body") {
        try tenant.withValue("body") {
          try Self.change(&box.count) { count in
            for _ in 0..<8 {
              count += 1
              try yield("\(Request.user) \(tenant.value) \(count)")
            }
          }
        }
      }
      try yield("\(Request.user) \(tenant.value)")
    }
    let handed = Handed(generator)
    for step in 1...8 {
      let seen = try await onOwnThread {
        Self.change(&box.names) { $0.append(handed.value.next() ?? "end") }
        return box.names.removeLast()
      }
      #expect(seen == "body body \(step)")
    }
    #expect(try await onCoroutine { handed.value.next() } == "nobody none")
    #expect(box.count == 8)
  }

  @Test func `a generator that is released inside an inout access on another thread unwinds there`() async throws {
    let box = Box()
    let trace = Trace()
    func begun() -> Handed<Generator<Int, Never, Void>> {
      let generator = co_sequence(of: Int.self) { yield in
        defer { trace("unwound \(box.count)") }
        try tenant.withValue("body") {
          try Self.change(&box.count) { count in
            count += 1
            try yield(count)
          }
        }
      }
      _ = generator.next()
      return Handed(generator)
    }
    var handed: Handed? = begun()
    let moved = Handed(Array([handed].compactMap { $0 }))
    handed = nil
    try await onOwnThread { _ = moved.value.count }
    #expect(trace.all.isEmpty)
    try await dropElsewhere(moved)
    #expect(box.count == 1)
  }

  private func dropElsewhere(_ moved: consuming Handed<[Handed<Generator<Int, Never, Void>>]>) async throws {
    let last = moved
    try await onCoroutine { last.value.first?.value.close() }
  }

  @Test(arguments: ["timeout", "shield", "scope", "supervise"])
  func `a yield inside a deadline, shield or scope of the body throws, and the consumer's cancellation is unaffected`(
    kind: String
  ) async throws {
    let outcomes = try await onSerialQueue {
      let generator = co_sequence(of: Int.self) { yield in
        try yield(1)
        switch kind {
        case "timeout": try co_timeout(.seconds(1000)) { try yield(2) }
        case "shield": try co_shield { try yield(2) }
        case "scope": try co_scope { _ in try yield(2) }
        default: try co_scope(failures: .isolated) { _ in try yield(2) }
        }
      }
      let first = outcome { String(describing: generator.next()) }
      let second = outcome { try co_timeout(.seconds(1000)) { try generator.step() } }
      try co_checkCancelled()
      return [first, second]
    }
    #expect(outcomes == ["Optional(1)", "yieldInsideScope"])
  }

  @Test(arguments: ["close", "throw", "step"])
  func `a refused delegation leaves a fresh inner generator fresh`(_ then: String) async throws {
    let trace = Trace()
    try await onSerialQueue {
      let inner = co_sequence(of: Int.self) { yield in
        trace("inner runs")
        try yield(1)
      }
      let outer = co_sequence(of: Int.self) { yield in
        do {
          try co_timeout(.seconds(1000)) { try yield.all(of: inner) }
        } catch CoroutineError.yieldInsideScope {
          try yield(7)
        }
      }
      #expect(outer.next() == 7)
      #expect(trace.all.isEmpty)
      switch then {
      case "close": inner.close()
      case "throw": #expect(outcome { try inner.throw(Oops("early")) } == "Oops(early)")
      default: #expect(inner.next() == 1)
      }
    }
    #expect(trace.all == (then == "step" ? ["inner runs"] : []))
  }

  @Test func `a wait inside a deadline, shield or scope of the body and a yield after it work`() async throws {
    let values = try await onSerialQueue {
      let channel = Promise.value(5)
      let generator = co_sequence(of: Int.self) { yield in
        for _ in 0..<2 { try yield(try co_timeout(.seconds(1000)) { try co_await(channel) }) }
        try yield(try co_scope { scope in try scope.launch { 6 }.join() })
      }
      return Array(generator)
    }
    #expect(values == [5, 5, 6])
  }
}
