import CCoroutine
import Dispatch
import Glibc
import Testing

@testable import Coroutine

@Suite("A thread for blocking code", .timeLimit(.minutes(5)))
struct BlockingThreadTests {
  @Test func `has a name that identifies its pool`() async throws {
    let name = try await onCoroutine { try co_blocking { text(of: "/proc/thread-self/comm") } }
    #expect(name.hasPrefix("co-blocking-"))
  }

  @Test func `takes the signals that a dispatch worker takes`() async throws {
    let mine = try await onCoroutine { try co_blocking { blockedSignals() } }
    let workers = try await onBlock(of: .global()) { blockedSignals() }
    #expect(mine == workers)
    #expect(mine.contains(SIGTERM) && mine.contains(SIGUSR2) && mine.contains(SIGCHLD))
    #expect(!mine.contains(SIGSEGV) && !mine.contains(SIGPROF))
  }

  @Test func `leaves its creator's signals as they were`() async throws {
    let (before, after) = try await onOwnThread {
      let before = blockedSignals()
      SignalMask.whileBlocked {}
      return (before, blockedSignals())
    }
    #expect(before == after)
  }

  @Test func `has a stack of 1 MiB`() async throws {
    #expect(try await onCoroutine { try co_blocking { stackSize() } } == 1 << 20)
  }

  @Test func `a thread that its body ends by pthread_exit makes the caller throw, and is replaced`() async throws {
    let pool = BlockingPool(limit: 1)
    for _ in 0..<20 {
      let (ended, next) = try await onCoroutine {
        // Queued behind the body that ends the thread.
        let following = co_launch { try pool.run { 7 } }
        let ended = outcome { try pool.run { () -> Int in pthread_exit(nil) } }
        return (ended, try following.join())
      }
      #expect(ended == "blockingThreadEnded")
      #expect(next == 7)
    }
    #expect(try await onCoroutine { try pool.run { 8 } } == 8)
    #expect(pool.counts.threads <= 1)
  }

  @Test func `a thread that its body ends releases the bindings that the body ran with`() async throws {
    let pool = BlockingPool(limit: 1)
    let bound = CoroutineLocal<Tracked?>(default: nil)
    let released = Flag()
    let ended = try await onCoroutine {
      bound.withValue(Tracked { released.raise() }) {
        outcome { try pool.run { () -> Int in pthread_exit(nil) } }
      }
    }
    #expect(ended == "blockingThreadEnded")
    // The thread releases them last, after it has resumed the caller. The suite's time limit ends a wait for ever.
    while !released.isRaised { await Task.yield() }
  }

  // ThreadSanitizer ends a process in which a thread is cancelled inside of a call that it intercepts.
  @Test(.enabled(if: cco_compiled_sanitizers() & CCO_THREAD_SANITIZER.rawValue == 0))
  func `a thread that is cancelled while its body waits makes the caller throw`() async throws {
    let pool = BlockingPool(limit: 1)
    let job = co_launch {
      outcome {
        try pool.run {
          cancelled.withLock { $0 = pthread_self() }
          while true { sleep(100) }
        }
      }
    }
    try await onOwnThread {
      while cancelled.current == nil { sched_yield() }
      pthread_cancel(cancelled.current!)
    }
    #expect(try await job.value == "blockingThreadEnded")
    #expect(try await onCoroutine { try pool.run { 8 } } == 8)
    #expect("\(CoroutineError.blockingThreadEnded)".contains("pthread_exit"))
  }

  // ThreadSanitizer ends a process in which a thread is cancelled inside of a call that it intercepts.
  @Test(.enabled(if: cco_compiled_sanitizers() & CCO_THREAD_SANITIZER.rawValue == 0))
  func `a thread that its body asks to end wakes the coroutine first`() async throws {
    let end = Promise<String>()
    let pool = BlockingPool(limit: 1, observe: { if $0 == .ended { end.fulfill("the thread has ended") } })
    let host = CancellationPoint()
    let scheduler = HostedScheduler(host)
    co_launch(on: scheduler) {
      end.fulfill(
        outcome {
          try pool.run {
            // The next wake-up is a submission.
            while !host.hasDrained.isRaised { sched_yield() }
            pthread_cancel(pthread_self())
            return 7
          }
        }
      )
    }
    #expect(try await end.value == "7")
  }
}

/// A loop that is woken at a cancellation point, as one is that others write to.
private final class CancellationPoint: CoroutineHost {
  private let loop = Loop()
  let hasDrained = Flag()

  var coroutineLabel: String { loop.coroutineLabel }
  var isCurrentForCoroutines: Bool { loop.isCurrentForCoroutines }
  func submit(_ drain: HostedDrain) {
    pthread_testcancel()
    loop.execute { [hasDrained] in
      drain()
      hasDrained.raise()
    }
  }
  func schedule(_ drain: HostedDrain, after delay: Duration) { loop.schedule(drain, after: delay) }
  func unschedule() { loop.unschedule() }
}

/// The thread that a test cancels.
///
/// Not captured: objects that the frames of the cancelled body hold are never released.
private let cancelled = Locked<pthread_t?>(nil)

/// The stack size of the calling thread.
///
/// Swift's C library module lacks pthread_getattr_np, so it is looked up; and several modules declare pthread_attr_t,
/// so it is not initialised by name.
private func stackSize() -> Int {
  typealias Get = @convention(c) (pthread_t, UnsafeMutablePointer<pthread_attr_t>) -> Int32
  return withUnsafeTemporaryAllocation(of: pthread_attr_t.self, capacity: 1) { attributes in
    guard let attributes = attributes.baseAddress, let symbol = dlsym(nil, "pthread_getattr_np"),
      unsafeBitCast(symbol, to: Get.self)(pthread_self(), attributes) == 0
    else { return 0 }
    defer { pthread_attr_destroy(attributes) }
    var size = 0
    pthread_attr_getstacksize(attributes, &size)
    return size
  }
}
