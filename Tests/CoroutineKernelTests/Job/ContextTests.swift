import Coroutine
import Dispatch
import Testing

/// A logger's metadata, as logging libraries keep it: a dictionary in a task-local.
private enum Log {
  @TaskLocal static var metadata: [String: String] = [:]
  static func with<Output>(_ key: String, _ value: String, _ body: () throws -> Output) rethrows -> Output {
    try $metadata.withValue(metadata.merging([key: value]) { $1 }, operation: body)
  }
  static var line: String { metadata.sorted { $0.key < $1.key }.map { "\($0.key)=\($0.value)" }.joined(separator: " ") }
}

private enum Other {
  @TaskLocal static var number = 0
  @TaskLocal static var wide = Wide()
  @TaskLocal static var held: Tracked?
}

private struct Wide: Sendable, Equatable {
  var vector = SIMD16<Int64>(repeating: 0)
  var text: any Sendable & Equatable = "default"
  static func == (one: Wide, other: Wide) -> Bool { one.vector == other.vector && "\(one.text)" == "\(other.text)" }
}

private let tenant = CoroutineLocal(default: "none")

/// A launched coroutine sees the bindings of its launcher.
@Suite("Context that crosses", .timeLimit(.minutes(10)))
struct ContextTests {
  @Test func `a coroutine sees the task-locals of its launch, from a Task, a thread and a coroutine`() async throws {
    let fromTask = await Log.$metadata.withValue(["id": "task"]) {
      await Task.yield()
      return co_launch { Log.line }
    }
    #expect(try await fromTask.value == "id=task")
    let fromThread = try await onOwnThread { Log.with("id", "thread") { co_launch { Log.line } } }
    #expect(try await fromThread.value == "id=thread")
    let nested = try await onCoroutine {
      try Log.with("id", "outer") {
        try co_launch {
          let first = Log.line
          let second = try Log.with("span", "1") { try co_launch { Log.line }.join() }
          return [first, second, Log.line, try co_launch { Log.line }.join()]
        }.join() + [Log.line]
      } + [Log.line]
    }
    #expect(nested == ["id=outer", "id=outer span=1", "id=outer", "id=outer", "id=outer", ""])
  }

  @Test func `bindings outlast withValue in what was launched, in every start mode, on changing threads`()
    async throws
  {
    let queues = (0..<4).map { taggedQueue("context \($0)") }
    let jobs = (0..<60).map { number in
      Log.with("id", "\(number)") {
        Other.$number.withValue(number) {
          co_launch(on: queues[number % 4], start: [.queued, .immediate, .lazy][number % 3]) {
            var strangers = 0
            for hop in 0..<20 {
              if Log.line != "id=\(number)" || Other.number != number { strangers += 1 }
              try co_switch(to: queues[(number + hop) % 4])
              let inner = try Log.with("hop", "\(hop)") {
                try co_yield()
                return Log.line
              }
              if inner != "hop=\(hop) id=\(number)" { strangers += 1 }
            }
            return strangers
          }
        }
      }
    }
    for job in jobs { #expect(try await job.value == 0) }
    #expect(Log.line == "")
  }

  @Test func `scopes, actors, generators and blocking code see them as well`() async throws {
    let seen = try await Log.with("id", "7") {
      co_launch {
        var seen = try Log.with("in", "scope") { try co_scope { scope in try scope.launch { Log.line }.join() } }
        let generator = Log.with("in", "generator") {
          co_sequence(of: String.self) { yield in
            try yield(Log.line)
            try Log.with("own", "1") { try yield(Log.line) }
            try yield(Log.line)
          }
        }
        seen += " | " + Log.with("in", "step") { Array(generator) }.joined(separator: ", ")
        let actor = Log.with("in", "actor") {
          co_actor(of: Reply<String>.self) { mailbox in while let reply = try mailbox.receive() { reply(Log.line) } }
        }
        seen += " | " + (try actor.ask { $0 })
        seen += " | " + (try Log.with("in", "blocking") { try co_blocking { Log.line } })
        return seen + " | " + Log.line
      }
    }.value
    #expect(
      seen == "id=7 in=scope | id=7 in=generator, id=7 in=generator own=1, id=7 in=generator | id=7 in=actor"
        + " | id=7 in=blocking | id=7"
    )
  }

  @Test func `Tasks, child tasks and async calls in a coroutine that has inherited see them`() async throws {
    let seen = try await Log.with("id", "1") {
      co_launch {
        try Log.with("own", "2") {
          try co_await {
            async let child = Log.with("async", "let") { co_launch { Log.line } }.value
            let group = try await withThrowingTaskGroup(of: String.self) { group in
              Log.with("in", "group") { group.addTask { try await co_launch { Log.line }.value } }
              return try await group.next() ?? ""
            }
            return [await Task { Log.line }.value, group, try await child, await Task.detached { Log.line }.value]
          }
        }
      }
    }.value
    #expect(seen == ["id=1 own=2", "id=1 in=group own=2", "async=let id=1 own=2", ""])
  }

  @Test func `values of any size, alignment and kind cross, and are released with their last user`() async throws {
    let released = Gate()
    let wide = Wide(vector: SIMD16(repeating: 7), text: [1, 2, 3])
    func launched() -> Job<[Bool]> {
      Other.$wide.withValue(wide) {
        Other.$held.withValue(Tracked { released.open() }) {
          co_launch {
            let isSame = Other.wide == wide
            return [isSame, Other.held != nil, try co_launch { Other.wide == wide && Other.held != nil }.join()]
          }
        }
      }
    }
    #expect(try await launched().value == [true, true, true])
    try await onCoroutine { try released.pass() }
  }

  @Test func `a hundred generations that each bind and launch the next see their own values`() async throws {
    @Sendable func generation(_ number: Int) -> Job<Int> {
      Other.$number.withValue(number) {
        tenant.withValue("\(number)") {
          co_launch {
            guard Other.number == number, tenant.value == "\(number)", Log.line == "id=root" else { return -1 }
            return number == 100 ? number : try generation(number + 1).join()
          }
        }
      }
    }
    #expect(try await Log.with("id", "root") { generation(0) }.value == 100)
  }

  @Test func `a coroutine without bindings sees none, also on a stack whose last user had some`() async throws {
    let seen = try await onSerialQueue {
      var seen: [String] = []
      for round in 0..<4 {
        let bound = Log.with("id", "\(round)") { co_launch { Log.line } }
        let plain = co_launch { Log.line }
        seen += [try bound.join(), try plain.join()]
      }
      return seen
    }
    #expect(seen == (0..<4).flatMap { ["id=\($0)", ""] })
  }

  @Test func `a job that is cancelled before its start, or that throws, leaves nothing behind`() async throws {
    let seen = try await onSerialQueue {
      let cancelled = Log.with("id", "1") { co_launch { Log.line } }
      cancelled.cancel()
      let throwing = Log.with("id", "2") { co_launch { () throws -> String in throw Oops(Log.line) } }
      let lazy = Log.with("id", "3") { co_launch(start: .lazy) { Log.line } }
      lazy.cancel()
      let plain = co_launch { Log.line }
      return [outcome { try cancelled.join() }, outcome { try throwing.join() }, try plain.join(), Log.line]
    }
    #expect(seen == ["CancellationError", "Oops(id=2)", "", ""])
  }

  // MARK: CoroutineLocal in async code

  @Test func `async code that is called sees CoroutineLocals, and so do coroutines that it launches`() async throws {
    let seen = try await onCoroutine {
      try tenant.withValue("a") {
        let inside = try co_await {
          await Task.yield()
          let first = tenant.value
          let launched = try await co_launch { tenant.value }.value
          let bound = try await tenant.withValue("b") { co_launch { tenant.value } }.value
          let deeper = try await co_launch {
            try co_await {
              await Self.hop()
              return tenant.value
            }
          }.value
          return [first, launched, bound, deeper, tenant.value]
        }
        return inside + [tenant.value]
      } + [try co_await { tenant.value }]
    }
    #expect(seen == ["a", "a", "b", "a", "a", "a", "none"])
  }

  @Test func `a promise's Task sees CoroutineLocals and task-locals`() async throws {
    let promise = try await onCoroutine {
      tenant.withValue("t") {
        Log.with("id", "p") {
          Promise.task {
            await Self.hop()
            return tenant.value + Log.line
          }
        }
      }
    }
    #expect(try await promise.value == "tid=p")
  }

  private static func hop() async { await Task.yield() }
}
