import CTestSupport
import Dispatch
import Glibc
import Testing

@testable import Coroutine

@Suite("A thread for blocking code", .timeLimit(.minutes(10)))
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

  @Test func `has a stack of 8 MiB, and a guard as wide as a coroutine's`() async throws {
    let size = try await onCoroutine { try co_blocking { stackSize() } }
    #expect(size == 8 << 20 || size == 8 << 20 + 64 << 10)
  }

  /// What a body may change of its thread, and how the next body sees it.
  enum Change: String, CaseIterable, Sendable {
    case rounding, flushing, mask, locale, name, cancelling, signalStackOff, signalStackOfItsOwn

    func make() {
      switch self {
      case .rounding: fesetround(0x800)  // FE_UPWARD on x86-64; a no-op elsewhere
      case .flushing: cts_flush_to_zero()
      case .mask:
        var none = sigset_t()
        sigemptyset(&none)
        pthread_sigmask(SIG_SETMASK, &none, nil)
      case .locale: uselocale(newlocale(0x1fbf, "C.UTF-8", nil))  // LC_ALL_MASK
      case .name:
        let file = open("/proc/thread-self/comm", O_WRONLY)
        write(file, "renamed", 7)
        close(file)
      case .cancelling: pthread_setcancelstate(Int32(PTHREAD_CANCEL_ENABLE), nil)
      case .signalStackOff:
        var none = stack_t(ss_sp: nil, ss_flags: 2, ss_size: 0)  // SS_DISABLE
        sigaltstack(&none, nil)
      case .signalStackOfItsOwn:
        var own = stack_t(ss_sp: malloc(64 << 10), ss_flags: 0, ss_size: 64 << 10)
        sigaltstack(&own, nil)
      }
    }

    /// What a body sees of its thread.
    static func see() -> [String] {
      var cancelling: Int32 = 0
      pthread_setcancelstate(Int32(PTHREAD_CANCEL_DISABLE), &cancelling)
      pthread_setcancelstate(cancelling, nil)
      var signalStack = stack_t()
      sigaltstack(nil, &signalStack)
      let locale = UInt(bitPattern: uselocale(nil))
      return [
        "\(divided(1, by: 3).bitPattern)", "\(divided(.leastNormalMagnitude, by: 2).bitPattern)",
        "\(blockedSignals().sorted())", "\(locale)", text(of: "/proc/thread-self/comm"), "\(cancelling)",
        "\(signalStack.ss_flags) \(signalStack.ss_size) \(String(describing: signalStack.ss_sp))",
      ]
    }

    @inline(never)
    private static func divided(_ number: Double, by other: Double) -> Double { number / other }
  }

  // AddressSanitizer has a signal stack of its own for each thread, which it frees.
  @Test(arguments: Change.allCases.filter { !countsLeaks || !"\($0)".hasPrefix("signalStack") })
  func `a body finds the thread as the first one did, whatever the body before has changed`(_ change: Change)
    async throws
  {
    let (first, changed, next) = try await onCoroutine {
      // One thread for all of them, also if the process stands still for seconds in between.
      let pool = BlockingPool(limit: 1, idleTimeout: .seconds(600))
      let first = try pool.run { Change.see() }
      let changed = try pool.run {
        change.make()
        return Change.see()
      }
      return (first, changed, try pool.run { Change.see() })
    }
    #if arch(x86_64)
    #expect(changed != first)
    #endif
    #expect(next == first)
  }

  @Test func `a body of co_blocking that ends its thread ends the process with a sentence`() async {
    let died = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      let job = co_launch { try co_blocking { () -> Int in pthread_exit(nil) } }
      _ = try await job.value
    }
    let words = String(decoding: died?.standardErrorContent ?? [], as: UTF8.self)
    #expect(words.contains("Coroutine: code has ended its thread co-blocking-"), "\(words)")
    #expect(words.contains("return or throw instead"), "\(words)")
  }

  @Test(.enabled(if: !isThreadSanitized))
  func `a coroutine that ends its thread, of the pool or of Dispatch, ends the process with a sentence`() async {
    let onWorker = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      _ = try await co_launch(name: "leaves") { () -> Int in pthread_exit(nil) }.value
    }
    let onQueue = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      _ = try await co_launch(on: DispatchQueue(label: "q"), name: "leaves") { () -> Int in pthread_exit(nil) }.value
    }
    for died in [onWorker, onQueue] {
      let words = String(decoding: died?.standardErrorContent ?? [], as: UTF8.self)
      #expect(words.contains("Coroutine: coroutine \"leaves\" (id "), "\(words)")
      #expect(words.contains(" has ended its thread "), "\(words)")
      #expect(words.contains("launched at ") && words.contains("BlockingThreadTests.swift:"), "\(words)")
    }
  }

  @Test(.enabled(if: !isThreadSanitized))
  func `a generator's body that ends the thread of its consumer ends the process with a sentence`() async {
    let died = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      try await onOwnThread {
        let steps = co_sequence { yield in
          leave()
          try yield(1)
        }
        _ = steps.next()
      }
    }
    let words = String(decoding: died?.standardErrorContent ?? [], as: UTF8.self)
    #expect(words.contains(" has ended its thread "), "\(words)")
  }

  @Test func `a thread that has run coroutines and ends outside of them ends alone`() async throws {
    try await onOwnThread {
      let steps = co_sequence { yield in try yield(1) }
      #expect(steps.next() == 1)
    }
    #expect(try await onCoroutine { 2 } == 2)
  }
}

/// Ends the thread, in a function that the compiler takes for one that returns.
@inline(never)
private func leave() { pthread_exit(nil) }

/// The stack size of the calling thread.
///
/// Swift's C library module lacks pthread_getattr_np, so it is looked up; and several modules declare pthread_attr_t,
/// so it is not initialised by name.
func stackSize() -> Int {
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
