import Coroutine
import Harness

/// The calls that never wait, each many times on a plain thread, for callgrind to count.
///
/// Outside a world each of them reads once whether there are worlds. The program starts no other thread and no queue,
/// so two runs differ by the calls alone.
enum Calls {
  static let all: [(name: String, run: @Sendable (Int) -> Void)] = [
    ("co_point", { count in for _ in 0..<count { co_point() } }),
    (
      "co_fault",
      { count in
        var faults = 0
        for _ in 0..<count where co_fault("disk") { faults += 1 }
        expect(faults, equals: 0, "faults outside a world")
      }
    ),
    (
      "trySend, tryReceive",
      { count in
        let channel = Channel<Int>(1)
        for number in 0..<count {
          _ = channel.trySend(number)
          _ = channel.tryReceive()
        }
      }
    ),
    (
      "tryAcquire, release",
      { count in
        let semaphore = FairSemaphore(1)
        for _ in 0..<count where semaphore.tryAcquire() { semaphore.release() }
      }
    ),
    (
      "tryLock, unlock",
      { count in
        let mutex = FairMutex()
        for _ in 0..<count where mutex.tryLock() { mutex.unlock() }
      }
    ),
    (
      "tryLockRead, unlockRead",
      { count in
        let lock = FairReadWriteLock()
        for _ in 0..<count where lock.tryLockRead() { lock.unlockRead() }
      }
    ),
    (
      "add, done",
      { count in
        let group = WaitGroup()
        for _ in 0..<count {
          group.add()
          group.done()
        }
      }
    ),
    (
      "signal, without a waiter",
      { count in
        let condition = Condition(FairMutex())
        for _ in 0..<count { condition.signal() }
      }
    ),
    (
      "a promise, fulfill",
      { count in for number in 0..<count { Promise<Int>().fulfill(number) } }
    ),
    (
      "isSettled",
      { count in
        let promise = Promise<Int>()
        for _ in 0..<count where promise.isSettled { fail("nobody has settled the promise") }
      }
    ),
    (
      "isFinished",
      { count in
        let job = co_launch(start: .lazy) {}
        for _ in 0..<count where job.isFinished { fail("nobody has started the job") }
      }
    ),
  ]
}
