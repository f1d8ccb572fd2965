import Coroutine
import Dispatch
import Glibc
import Testing

@Suite("Stress: permits and gates", .timeLimit(.minutes(10)))
struct GateStressTests {
  @Test func `permits are conserved, whatever is requested and cancelled`() async throws {
    let stress = Stress()
    let total = 5
    for round in 0..<stress.rounds(20) {
      let (semaphore, taken, most) = (FairSemaphore(total), Census(), Census())
      let places = queues(2).map(Optional.some) + [nil, nil]
      let jobs = (0..<40).map { index in
        co_launch(on: places[index % places.count]) {
          var random = stress.random(round << 8 | index)
          for _ in 0..<100 {
            let count = Int(random.next() % UInt64(total)) + 1
            if random.next() % 8 == 0 {
              guard semaphore.tryAcquire(count) else { continue }
            } else {
              try semaphore.acquire(count)
            }
            if taken.change(by: count) > total { most.change() }
            if random.next() % 8 == 0 { _ = try? co_yield() }
            taken.change(by: -count)
            // In two parts, so that waiters find too few permits at first.
            semaphore.release(count / 2)
            semaphore.release(count - count / 2)
          }
        }
      }
      try await cancelSome(of: jobs, stress.random(round))
      for job in jobs { _ = try? await job.value }
      #expect(most.now == 0, "\(stress.replay)")
      #expect(semaphore.available == total, "\(stress.replay)")
      #expect(semaphore.tryAcquire(total), "\(stress.replay)")
    }
  }

  /// One waiter, granted by one thread and cancelled by another at the same time: the permit is taken or given back.
  ///
  /// The threads meet before each waiter, so neither runs ahead on a loaded machine. Some waiters are granted before
  /// they are cancelled, and some cancelled before they are granted: their outcomes are certain.
  @Test func `two hundred thousand grants against cancellations lose no permit`() async throws {
    let stress = Stress()
    let size = 1_000
    var (granted, cancelled) = (0, 0)
    for batch in 0..<stress.rounds(200_000 / size) {
      let semaphores = (0..<size).map { _ in FairSemaphore(1) }
      for semaphore in semaphores { #expect(semaphore.tryAcquire()) }
      let (queue, parked, all) = (DispatchQueue(label: "coroutine.stress.grant"), Census(), Promise<Void>())
      let jobs = (0..<size).map { index in
        co_launch(on: index.isMultiple(of: 2) ? queue : nil) {
          if parked.change() == size { all.fulfill(()) }
          try semaphores[index].acquire()
        }
      }
      try await co_launch { try co_await(all) }.value
      // Those of the queue have parked when this one runs.
      try await co_launch(on: queue) {}.value
      var random = stress.random(batch)
      let order = Array(0..<size).shuffled(using: &random)
      let (begun, done) = (Census(), Census())
      try await onThreads(2) { thread in
        for (step, index) in order.enumerated() {
          begun.change()
          while begun.now < 2 * (step + 1) { sched_yield() }
          // The second thread of a certain outcome waits for the first, which has done both parts of earlier steps.
          if let first = Self.firstThread(step, index), first != thread { while done.now <= 2 * step { sched_yield() } }
          if thread == 0 { semaphores[index].release() } else { jobs[index].cancel() }
          done.change()
        }
      }
      for (step, index) in order.enumerated() {
        var isGranted = false
        do {
          try await jobs[index].value
          isGranted = true
          granted += 1
        } catch {
          cancelled += 1
        }
        #expect(semaphores[index].available == (isGranted ? 0 : 1), "\(stress.replay)")
        if let first = Self.firstThread(step, index) { #expect(isGranted == (first == 0), "\(stress.replay)") }
      }
    }
    #expect(granted > 0 && cancelled > 0, "\(granted) \(cancelled) \(stress.replay)")
  }

  /// The thread that acts first on the waiter of a step, 0 to grant and 1 to cancel; nil if they race.
  private static func firstThread(_ step: Int, _ index: Int) -> Int? {
    switch step % 8 {
    // A waiter on a worker may not have parked yet, so its outcome is not certain.
    case _ where !index.isMultiple(of: 2): nil
    case 0: 0
    case 1: 1
    default: nil
    }
  }

  /// Producers and consumers have equally many operations, so a lost wake-up would stop them for ever.
  ///
  /// Further coroutines in the queues pass each signal on, until they are cancelled.
  @Test func `conditions lose no wake-up, whichever waiter is cancelled`() async throws {
    let stress = Stress()
    for round in 0..<stress.rounds(20) {
      let buffer = Buffer()
      let places = queues(2).map(Optional.some) + [nil, nil]
      let workers = (0..<6).map { index in
        co_launch(on: places[index % places.count]) {
          for _ in 0..<200 { if index.isMultiple(of: 2) { try buffer.put() } else { try buffer.take() } }
        }
      }
      let fickle = (0..<12).map { index in
        co_launch(on: places[index % places.count]) {
          while true {
            try buffer.passOn(index.isMultiple(of: 2))
            try co_yield()
          }
        }
      }
      try await cancelSome(of: fickle, stress.random(round))
      for worker in workers { try await worker.value }
      for job in fickle { job.cancel() }
      for job in fickle { _ = try? await job.value }
      #expect(buffer.count == 0, "\(stress.replay)")
      #expect(buffer.lock.tryLock(), "\(stress.replay)")
    }
  }

  /// A bounded buffer of a mutex and two conditions.
  private final class Buffer: @unchecked Sendable {
    // Sound because `count` is accessed with the mutex held, and at the end after waiting for all coroutines.
    let lock = FairMutex()
    private let notEmpty: Condition
    private let notFull: Condition
    private(set) var count = 0

    init() {
      notEmpty = Condition(lock)
      notFull = Condition(lock)
    }

    func put() throws {
      try lock.withLock {
        try notFull.wait { count < 2 }
        count += 1
        notEmpty.signal()
      }
    }

    func take() throws {
      try lock.withLock {
        try notEmpty.wait { count > 0 }
        count -= 1
        notFull.signal()
      }
    }

    /// Waits as a consumer or a producer, and passes the signal on.
    func passOn(_ isTaker: Bool) throws {
      try lock.withLock {
        if isTaker {
          try notEmpty.wait { count > 0 }
          notEmpty.signal()
        } else {
          try notFull.wait { count < 2 }
          notFull.signal()
        }
      }
    }
  }

  @Test func `every waiter of a group or a latch continues, on every core`() async throws {
    let stress = Stress()
    for round in 0..<stress.rounds(100) {
      let (group, latch, early) = (WaitGroup(), Latch(8), Census())
      group.add(8)
      let done = Census()
      let places = queues(2).map(Optional.some) + [nil]
      let waiters = (0..<12).map { index in
        co_launch(on: places[index % places.count]) {
          if index.isMultiple(of: 2) { try group.wait() } else { try latch.wait() }
          if done.now < (index.isMultiple(of: 2) ? 8 : 0) { early.change() }
        }
      }
      for index in 0..<8 {
        co_launch(on: places[index % places.count]) {
          done.change()
          group.done()
          latch.countDown()
        }
      }
      try await cancelSome(of: waiters, stress.random(round))
      for waiter in waiters { _ = try? await waiter.value }
      #expect(early.now == 0, "\(stress.replay)")
      #expect(latch.isOpen, "\(stress.replay)")
    }
  }

  /// Selects over three semaphores, with deadlines and cancellations: each takes from one of them, or from none.
  @Test func `permits are conserved by selects that take them or not, time out and are cancelled`() async throws {
    let stress = Stress()
    for round in 0..<stress.rounds(20) {
      let semaphores = (0..<3).map { _ in FairSemaphore(3) }
      let places = queues(2).map(Optional.some) + [nil, nil]
      let taken = Census()
      let jobs = (0..<30).map { index in
        co_launch(on: places[index % places.count]) {
          var random = stress.random(round << 8 | index)
          for _ in 0..<60 {
            let counts = (0..<3).map { _ in Int(random.next() % 3) + 1 }
            let won = try co_select {
              for (number, semaphore) in semaphores.enumerated() { semaphore.onAcquire(counts[number]) { number } }
              if random.next() % 8 == 0 { SelectCase.onTimeout(.microseconds(20)) { -1 } }
            }
            guard won >= 0 else { continue }
            taken.change()
            if random.next() % 4 == 0 { _ = try? co_yield() }
            semaphores[won].release(counts[won])
          }
        }
      }
      try await cancelSome(of: jobs, stress.random(round))
      for job in jobs { _ = try? await job.value }
      #expect(semaphores.map(\.available) == [3, 3, 3], "\(stress.replay)")
      #expect(taken.now > 0, "\(stress.replay)")
    }
  }
}
