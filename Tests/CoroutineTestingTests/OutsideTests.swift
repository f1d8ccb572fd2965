import Dispatch
import Glibc
import Synchronization
import Testing

@testable import Coroutine
@testable import CoroutineTesting

/// Waits that something outside of the world ends: an error that does not depend on how fast that is.
@Suite(.timeLimit(.minutes(10)))
struct OutsideTests {
  /// When a real thread ends the wait.
  enum Moment: CaseIterable { case beforeTheWait, whileOthersRun, neverInTime }

  /// Waits for a callback that a real thread makes at a given moment.
  private static func callback(_ moment: Moment, _ library: Library) throws {
    switch moment {
    case .beforeTheWait:
      let _: Int = try co_suspend { done in library.callAtOnce { done.resume(1) } }
    case .whileOthersRun:
      let job = co_launch(name: "caller") { () throws -> Int in
        try co_suspend { done in library.call { done.resume(1) } }
      }
      try co_yield()
      library.returnNow()
      library.waitForReturn()
      _ = try job.join()
    case .neverInTime:
      let job = co_launch(name: "caller") { () throws -> Int in
        try co_suspend { done in library.call { done.resume(1) } }
      }
      // Time passes, and does not help.
      try co_delay(.seconds(60))
      _ = try job.join()
    }
  }

  @Test(arguments: Moment.allCases) func `a callback of a thread is a real wait, however fast it comes`(
    moment: Moment
  ) async throws {
    try await onOwnThread {
      let library = Library()
      let error = #expect(throws: World.RealWaitError.self) { try World().run { try Self.callback(moment, library) } }
      #expect(error?.wait.contains("waits for") == true)
      if moment == .neverInTime {
        #expect(error?.wait.contains("\"caller\"") == true)
        #expect(error?.wait.contains("a callback") == true)
      }
      library.returnNow()
      library.queue.sync {}
    }
  }

  @Test func `a callback whose thread has ended the wait, and not sent its message yet, is a real wait`() async throws {
    try await onOwnThread {
      let library = Library()
      let (isHeld, mayGoOn) = (DispatchSemaphore(value: 0), DispatchSemaphore(value: 0))
      let error = #expect(throws: World.RealWaitError.self) {
        try World().run {
          let world = try #require(SimulatedWorld.current)
          let job = co_launch(name: "caller") { () throws -> Int in
            try co_suspend { done in library.call { done.resume(1) } }
          }
          try co_yield()
          DispatchQueue(label: "holder").async {
            world.foreignWakes.lock.withLock {
              isHeld.signal()
              mayGoOn.wait()
            }
          }
          isHeld.wait()
          library.returnNow()
          while job.record.seemsWaiting { sched_yield() }
          _ = try job.join()
        }
      }
      #expect(error?.wait.contains("\"caller\"") == true)
      mayGoOn.signal()
      library.waitForReturn()
    }
  }

  @Test(arguments: Moment.allCases) func `a declared one is none, however fast it comes`(moment: Moment) async throws {
    try await onOwnThread {
      let library = Library()
      // Nothing else can run then, so the world waits for the thread.
      if moment == .neverInTime { library.returnNow() }
      try World().run { try World.outside { try declared(moment, library) } }
    }

    @Sendable func declared(_ moment: Moment, _ library: Library) throws {
      let _: Int = try co_suspend { done in
        if moment == .beforeTheWait { return library.callAtOnce { done.resume(1) } }
        library.call { done.resume(1) }
        library.returnNow()
      }
    }
  }

  @Test func `what the declared code launches is declared too`() async throws {
    try await onOwnThread {
      let seen = try World().run {
        let notifier = World.outside {
          // Launched inside, and it waits after the end of the declaration.
          co_launch(name: "notifier") {
            try co_launch {
              try co_suspend { (done: Resumer<Int>) in DispatchQueue(label: "real").async { done.resume(1) } }
            }.join()
          }
        }
        return try notifier.join()
      }
      #expect(seen == 1)
    }
  }

  @Test func `a channel that a thread sends into while others run is a real wait`() async throws {
    try await onOwnThread {
      let error = #expect(throws: World.RealWaitError.self) {
        try World().run {
          let channel = Channel<Int>()
          let job = co_launch(name: "receiver") { try channel.receive() }
          try co_yield()
          let sent = DispatchSemaphore(value: 0)
          DispatchQueue(label: "real").async {
            _ = channel.trySend(1)
            sent.signal()
          }
          sent.wait()
          _ = try job.join()
        }
      }
      #expect(error?.wait.contains("\"receiver\"") == true)
    }
  }

  @Test func `a job that runs outside of the world is a real wait`() async throws {
    let gate = Channel<Void>()
    let outside = co_launch(name: "outside") { try gate.receive() }
    try await onOwnThread {
      let error = #expect(throws: World.RealWaitError.self) {
        try World().run { _ = try co_launch(name: "joiner") { _ = try outside.join() }.join() }
      }
      #expect(error?.wait.contains("\"joiner\"") == true)
      #expect(error?.wait.contains("a coroutine outside of the world") == true)
    }
    gate.close()
    _ = try? await outside.value
  }

  /// What a real thread ends, and a declared coroutine waits for.
  enum Object: CaseIterable { case promise, channel, closedChannel, selection, job }

  @Test(arguments: Object.allCases) func `a declared wait for what a real thread ends too is no deadlock`(
    _ object: Object
  ) async throws {
    let queue = DispatchQueue(label: "real")
    // With room: the job may not wait yet when the value is sent.
    let gate = Channel<Int>(1)
    let job = co_launch(name: "outside") { try gate.receive() }
    try await onOwnThread {
      let seen = try World().run {
        // Time passes before the world blocks its thread for any of these, but for a job.
        let timer = co_launch { if object != .job { try co_delay(.seconds(3_600)) } }
        let seen = try World.outside { () throws -> Int? in
          let channel = Channel<Int>(1)
          switch object {
          case .promise: return try co_await(Promise<Int> { done in queue.async { done.resume(1) } })
          case .channel:
            queue.async { _ = channel.trySend(1) }
            return try channel.receive()
          case .closedChannel:
            queue.async { channel.close() }
            return try channel.receive() ?? 1
          case .selection:
            queue.async { _ = channel.trySend(1) }
            return try co_select { channel.onReceive { $0 } }
          case .job:
            queue.async { _ = gate.trySend(1) }
            return try job.join()
          }
        }
        try timer.join()
        return seen
      }
      #expect(seen == 1)
    }
    gate.close()
    _ = try? await job.value
  }

  @Test func `what nothing in the world can wake is a deadlock`() {
    let error = #expect(throws: World.DeadlockError.self) { try World().run { _ = try Channel<Int>().receive() } }
    #expect(error.map { "\($0)" }?.hasPrefix("every coroutine waits, and nothing in the world can wake one") == true)
  }

  @Test func `a point in the body of a ThreadMutex is no choice`() throws {
    let mutex = ThreadMutex(0)
    let found = explore(.exhaustive()) {
      try co_scope { scope in
        for _ in 0..<2 {
          scope.launch {
            mutex.withLock { value in
              let seen = value
              co_point()
              value = seen + 1
            }
          }
        }
      }
    }
    #expect(found.isComplete && found.failure == nil)
  }
}

/// A library with a thread of its own, which calls back.
private final class Library: Sendable {
  let queue = DispatchQueue(label: "library")
  private let mayReturn = DispatchSemaphore(value: 0)
  private let hasReturned = DispatchSemaphore(value: 0)

  /// Calls back on another thread before this returns.
  func callAtOnce(_ done: @escaping @Sendable () -> Void) {
    queue.async { [hasReturned] in
      done()
      hasReturned.signal()
    }
    hasReturned.wait()
  }

  /// Calls back after `returnNow`.
  func call(_ done: @escaping @Sendable () -> Void) {
    queue.async { [mayReturn, hasReturned] in
      mayReturn.wait()
      done()
      hasReturned.signal()
    }
  }

  func returnNow() { mayReturn.signal() }
  func waitForReturn() { hasReturned.wait() }
}
