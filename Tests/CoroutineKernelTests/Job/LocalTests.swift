import Coroutine
import Dispatch
import Testing

@Suite("CoroutineLocal", .timeLimit(.minutes(10)))
struct LocalTests {
  @Test func `has its default value without a binding`() async throws {
    let local = CoroutineLocal(default: "default")
    #expect(local.value == "default")
    #expect(try await onCoroutine { local.value } == "default")
  }

  @Test func `withValue binds for its extent, nests, and returns the body's result`() async throws {
    let local = CoroutineLocal(default: 0)
    let seen = try await onCoroutine {
      var seen = [local.value]
      let result = local.withValue(1) {
        seen.append(local.value)
        local.withValue(2) { seen.append(local.value) }
        seen.append(local.value)
        return 9
      }
      return seen + [local.value, result]
    }
    #expect(seen == [0, 1, 2, 1, 0, 9])
  }

  @Test func `the binding ends also when the body throws`() async throws {
    let local = CoroutineLocal(default: 0)
    let seen = try await onCoroutine {
      [outcome { try local.withValue(1) { () throws -> Int in throw Oops("body") } }, "\(local.value)"]
    }
    #expect(seen == ["Oops(body)", "0"])
  }

  // In a world every queue runs on the world's thread.
  @Test(.tags(.realClock))
  func `a binding stays with its coroutine through suspensions and other queues`() async throws {
    let local = CoroutineLocal(default: "none")
    let seen = try await onSerialQueue {
      let jobs = ["a", "b", "c"].map { name in
        co_launch {
          try local.withValue(name) {
            var seen: [String] = []
            for _ in 0..<3 {
              try co_yield()
              seen.append(local.value)
              try co_switch(to: taggedQueue(name))
              seen.append(local.value)
              try co_delay(.milliseconds(1))
              seen.append(local.value)
            }
            return Set(seen)
          }
        }
      }
      try co_yield()
      return try jobs.map { try $0.join() } + [[local.value]]
    }
    #expect(seen == [["a"], ["b"], ["c"], ["none"]])
  }

  @Test func `a launched coroutine inherits the bindings of its launch, even if it starts later`() async throws {
    let local = CoroutineLocal(default: "none")
    let seen = try await onSerialQueue {
      let (queued, lazy, elsewhere) = local.withValue("bound") {
        (
          co_launch { local.value },
          co_launch(start: .lazy) { local.value },
          co_launch(on: taggedQueue("other")) { try co_launch { local.value }.join() }
        )
      }
      return [try queued.join(), try lazy.join(), try elsewhere.join(), local.value]
    }
    #expect(seen == ["bound", "bound", "bound", "none"])
  }

  @Test func `children of scopes inherit it, and their own bindings stay inside`() async throws {
    let local = CoroutineLocal(default: "none")
    let seen = try await onSerialQueue {
      try local.withValue("parent") {
        try co_scope { scope in
          let first = scope.launch {
            let inherited = local.value
            return try local.withValue("first") {
              try co_yield()
              return [inherited, local.value]
            }
          }
          let second = scope.launch {
            try co_yield()
            return [local.value]
          }
          return try first.join() + second.join() + [local.value]
        }
      }
    }
    #expect(seen == ["parent", "first", "parent", "parent"])
  }

  @Test func `two locals are independent`() async throws {
    let (number, text) = (CoroutineLocal(default: 0), CoroutineLocal(default: "none"))
    let seen = try await onCoroutine {
      number.withValue(1) { text.withValue("one") { "\(number.value) \(text.value)" } }
        + " \(number.value) \(text.value)"
    }
    #expect(seen == "1 one 0 none")
  }

  // MARK: outside a coroutine

  @Test func `outside a coroutine it is bound for the thread's extent and everything launched in it`() async throws {
    let local = CoroutineLocal(default: "none")
    let seen = try await onOwnThread {
      let job = local.withValue("thread") { () -> Job<[String]> in
        let inside = local.value
        return co_launch { [inside, local.value, try co_launch { local.value }.join()] }
      }
      return try job.blockingWait() + [local.value]
    }
    #expect(seen == ["thread", "thread", "thread", "none"])
  }

  @Test func `a thread's binding is not seen by another thread`() async throws {
    let local = CoroutineLocal(default: "none")
    let seen = try await onOwnThread {
      try local.withValue("this") {
        let other = Locked("unset")
        let done = DispatchSemaphore(value: 0)
        startThread {
          other.current = local.value
          done.signal()
        }
        done.wait()
        return [other.current, local.value, try co_launch { local.value }.blockingWait()]
      }
    }
    #expect(seen == ["none", "this", "this"])
  }

  @Test func `a coroutine that runs within a thread's binding sees only inherited bindings`() async throws {
    let local = CoroutineLocal(default: "none")
    let queue = taggedQueue("shared")
    let resumer = Locked<Resumer<Void>?>(nil)
    let parked = Gate()
    let job = co_launch(on: queue) {
      try co_suspend { (done: Resumer<Void>) in
        resumer.current = done
        parked.open()
      }
      return local.value
    }
    try await onCoroutine { try parked.pass() }
    try await onBlock(of: queue) { local.withValue("block") { resumer.current?.resume(()) } }
    #expect(try await job.value == "none")
  }

  @Test func `a bound object is released when the binding has ended everywhere`() async throws {
    let released = Gate()
    try await onSerialQueue { try Self.bind(Tracked { released.open() }) }
    try await onCoroutine { try released.pass() }
  }

  /// A loop that begins its next round by a launch inside of `withValue`.
  @Test func `values of rounds that are over are released, and a read of another local stays as it was`() async throws {
    let (living, most, read) = (Locked(0), Locked(0), Locked<[String]>([]))
    let (object, other, third) = (
      CoroutineLocal<Living?>(default: nil), CoroutineLocal(default: "none"), CoroutineLocal(default: 0)
    )
    let done = Gate()
    @Sendable func round(_ left: Int) {
      let now = living.current
      most.withLock { $0 = max($0, now) }
      if left.isMultiple(of: 500) { read.withLock { $0.append("\(other.value) \(third.value)") } }
      if left == 0 { return done.open() }
      object.withValue(Living(living)) {
        #expect(object.value != nil)
        third.withValue(left) { _ = co_launch { round(left - 1) } }
        #expect(third.value != left)
      }
    }
    try await onSerialQueue { other.withValue("other") { round(2_000) } }
    try await done.value
    #expect(most.current < 100, "\(most.current) values of 2,000 rounds were kept")
    #expect(read.current == ["other 0", "other 1501", "other 1001", "other 501", "other 1"])
  }

  @Test func `bindings that nest deeply end as they began`() {
    let locals = (0..<3).map { CoroutineLocal(default: -$0) }
    func nest(_ depth: Int) {
      if depth == 300 { return }
      locals[depth % 3].withValue(depth) {
        nest(depth + 1)
        for back in 0..<min(3, depth + 1) { #expect(locals[(depth - back) % 3].value == depth - back) }
      }
    }
    nest(0)
    #expect(locals.map(\.value) == [0, -1, -2])
  }

  private static let object = CoroutineLocal<Tracked?>(default: nil)

  private static func bind(_ held: Tracked) throws {
    try object.withValue(held) { co_launch { object.value?.use() } }.join()
  }
}

/// Counts the objects that are alive.
private final class Living: Sendable {
  private let count: Locked<Int>
  init(_ count: Locked<Int>) {
    self.count = count
    count.withLock { $0 += 1 }
  }
  deinit { count.withLock { $0 -= 1 } }
}
