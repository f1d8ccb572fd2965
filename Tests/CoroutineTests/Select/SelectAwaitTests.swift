import Coroutine
import Testing

/// An Awaitable that is not one of the runtime's own types.
private final class Announcement: Awaitable {
  private struct State {
    var result: Result<Int, any Error>?
    var listeners: [Int: @Sendable (Result<Int, any Error>) -> Void] = [:]
    var next = 0
  }
  private let state = Locked(State())

  var listenerCount: Int { state.withLock { $0.listeners.count } }

  func announce(_ result: Result<Int, any Error>) {
    let listeners = state.withLock { state in
      state.result = result
      defer { state.listeners = [:] }
      return state.listeners
    }
    for listener in listeners.values { listener(result) }
  }

  func observe(_ completion: @escaping @Sendable (Result<Int, any Error>) -> Void) -> AwaitableObservation {
    let (result, number) = state.withLock { state -> (Result<Int, any Error>?, Int) in
      state.next += 1
      if state.result == nil { state.listeners[state.next] = completion }
      return (state.result, state.next)
    }
    if let result { completion(result) }
    return AwaitableObservation { [state] in _ = state.withLock { $0.listeners.removeValue(forKey: number) } }
  }
}

@Suite("co_select: awaiting", .timeLimit(.minutes(10)))
struct SelectAwaitTests {
  @Test func `jobs and promises that have ended are ready, with their outcome`() async throws {
    try await onSerialQueue {
      let job = co_launch { 1 }
      try job.join()
      let rejected = Promise<Int>.failure(Oops("rejected"))
      #expect(try co_select { job.onAwait { outcome($0) } } == "1")
      #expect(try co_select { rejected.onAwait { outcome($0) } } == "Oops(rejected)")
      let which = try co_select {
        Promise<Int>().onAwait { outcome($0) }
        Promise.value(3).onAwait { outcome($0) }
      }
      #expect(which == "3")
    }
  }

  @Test func `a select waits for whichever ends first`() async throws {
    try await onSerialQueue {
      let promise = Promise<Int>()
      let other = Promise<Int>()
      let channel = Channel<Int>()
      let job = co_launch { () throws -> Int in
        try waitForCancellation()
        return 0
      }
      let select = {
        co_launch {
          try co_select {
            promise.onAwait { "promise " + outcome($0) }
            job.onAwait { "job " + outcome($0) }
            other.onAwait { "other " + outcome($0) }
            channel.onReceive { "channel \($0 ?? -1)" }
          }
        }
      }
      var selecting = select()
      try co_yield()
      try channel.send(1)
      #expect(try selecting.join() == "channel 1")
      selecting = select()
      try co_yield()
      other.fulfill(2)
      #expect(try selecting.join() == "other 2")
      job.cancel(Oops("end"))
      #expect(outcome { try job.join() } == "Oops(end)")
      promise.cancel()
    }
  }

  @Test func `a select starts a lazy job`() async throws {
    try await onSerialQueue { () throws -> Void in
      let lazy = co_launch(start: .lazy) { 5 }
      #expect(try co_select { lazy.onAwait { try $0.get() } } == 5)
    }
  }

  @Test func `a failure that a select has seen is not reported`() async throws {
    let unhandled = UnhandledErrors()
    try await onSerialQueue { () throws -> Void in
      let job = co_launch { () throws -> Int in throw unhandled.failure("seen") }
      #expect(try co_select { job.onAwait { outcome($0) } } == "Failure(seen)")
    }
    #expect(try await unhandled.settledLabels() == [])
  }

  @Test func `a failure that only an unselected case could have seen is reported`() async throws {
    let unhandled = UnhandledErrors()
    try await onSerialQueue {
      let channel = Channel<Int>(1)
      let gate = Gate()
      try channel.send(1)
      let job = co_launch { () throws -> Int in
        try gate.pass()
        throw unhandled.failure("unseen")
      }
      let value = try co_select(biased: true) {
        channel.onReceive { $0 ?? 0 }
        job.onAwait { _ in -1 }
      }
      #expect(value == 1)
      gate.open()
    }
    #expect(try await unhandled.jobs(count: 1).count == 1)
    #expect(unhandled.labels == ["unseen"])
  }

  @Test func `any Awaitable can be a case, and is not affected if unselected`() async throws {
    try await onSerialQueue {
      let announcement = Announcement()
      let channel = Channel<Int>()
      let select = {
        co_launch {
          try co_select {
            announcement.onAwait { "announced " + outcome($0) }
            channel.onReceive { "received \($0 ?? -1)" }
          }
        }
      }
      var job = select()
      try co_yield()
      #expect(announcement.listenerCount == 1)
      try channel.send(1)
      #expect(try job.join() == "received 1")
      #expect(announcement.listenerCount == 0)
      job = select()
      try co_yield()
      announcement.announce(.failure(Oops("news")))
      #expect(try job.join() == "announced Oops(news)")
      #expect(try select().join() == "announced Oops(news)")
    }
  }

  @Test func `a case that is given twice observes once, and leaves nothing behind`() async throws {
    try await onSerialQueue {
      let announcement = Announcement()
      let channel = Channel<Int>()
      let select = {
        co_launch {
          let single: SelectCase<String> = announcement.onAwait { "announced " + outcome($0) }
          return try co_select {
            single
            channel.onReceive { "received \($0 ?? -1)" }
            single
          }
        }
      }
      var job = select()
      try co_yield()
      #expect(announcement.listenerCount == 1)
      try channel.send(1)
      #expect(try job.join() == "received 1")
      #expect(announcement.listenerCount == 0)
      job = select()
      try co_yield()
      announcement.announce(.success(2))
      #expect(try job.join() == "announced 2")
    }
  }

  @Test(.inWorlds) func `a job that awaits itself in a select is never ready`() throws {
    let box = Locked<Job<String>?>(nil)
    let job = co_launch { () throws -> String in
      let own = box.current!
      box.current = nil
      return try co_select {
        own.onAwait { _ in "itself" }
        SelectCase.onTimeout(.seconds(3600)) { "timeout" }
      }
    }
    box.current = job
    #expect(try job.join() == "timeout")
    #expect(worldTime == .seconds(3600))
  }
}
