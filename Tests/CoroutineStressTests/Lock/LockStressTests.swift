import Coroutine
import Dispatch
import Testing

@Suite("Stress: locks", .timeLimit(.minutes(10)))
struct LockStressTests {
  /// A value that only the holder of a lock may access; otherwise unprotected, so that ThreadSanitizer sees overlaps.
  private final class Guarded: @unchecked Sendable {
    // Sound because the lock under test protects it.
    private(set) var count = 0
    private(set) var isInside = false

    func enter() -> Bool {
      defer { isInside = true }
      return !isInside
    }

    func leave() {
      count += 1
      isInside = false
    }
  }

  /// Coroutines of several queues and of the shared workers lock, some suspend inside, and a thread cancels at random.
  @Test func `a mutex has one owner at a time and serves every waiter, whichever is cancelled`() async throws {
    let stress = Stress()
    for round in 0..<stress.rounds(20) {
      let (lock, guarded, entered, doubled) = (FairMutex(), Guarded(), Census(), Census())
      let places = queues(2).map(Optional.some) + [nil, nil]
      let jobs = (0..<40).map { index in
        co_launch(on: places[index % places.count]) {
          var random = stress.random(round << 8 | index)
          for _ in 0..<100 {
            try lock.withLock {
              if !guarded.enter() { doubled.change() }
              if random.next() % 8 == 0 { _ = try? co_yield() }
              guarded.leave()
              entered.change()
            }
          }
        }
      }
      try await cancelSome(of: jobs, stress.random(round))
      for job in jobs { _ = try? await job.value }
      #expect(doubled.now == 0, "\(stress.replay)")
      #expect(guarded.count == entered.now, "\(stress.replay)")
      #expect(lock.tryLock(), "somebody was cancelled and took the lock along; \(stress.replay)")
    }
  }

  /// The same for the lock of threads, which must not be held over a suspension; threads of Dispatch and Tasks lock as
  /// well.
  @Test func `a lock of threads has one owner at a time, whatever runs on the threads`() async throws {
    let stress = Stress()
    for round in 0..<stress.rounds(20) {
      let (lock, entered, refused, doubled) = (ThreadMutex(Guarded()), Census(), Census(), Census())
      @Sendable func use(_ random: inout SeededRandom) {
        let section: (inout sending Guarded) -> sending Void = { guarded in
          if !guarded.enter() { doubled.change() }
          guarded.leave()
          entered.change()
        }
        if random.next() % 4 == 0 {
          if lock.withLockIfFree(section) == nil { refused.change() }
        } else {
          lock.withLock(section)
        }
      }
      let places = queues(2).map(Optional.some) + [nil, nil]
      let jobs = (0..<40).map { index in
        co_launch(on: places[index % places.count]) {
          var random = stress.random(round << 8 | index)
          for _ in 0..<100 {
            use(&random)
            if random.next() % 2 == 0 { try co_yield() }
          }
        }
      }
      async let threads: Void = onThreads(2) { thread in
        var random = stress.random(round << 8 | 100 + thread)
        for _ in 0..<500 { use(&random) }
      }
      await withTaskGroup { group in
        for task in 0..<4 {
          group.addTask {
            var random = stress.random(round << 8 | 200 + task)
            for _ in 0..<100 {
              use(&random)
              await Task.yield()
            }
          }
        }
      }
      try await threads
      for job in jobs { try await job.value }
      #expect(doubled.now == 0, "\(stress.replay)")
      #expect(entered.now + refused.now == 40 * 100 + 2 * 500 + 4 * 100, "\(stress.replay)")
      #expect(lock.withLock { $0.count } == entered.now, "\(stress.replay)")
    }
  }

  @Test func `a read-write lock excludes writers and serves every waiter, whichever is cancelled`() async throws {
    let stress = Stress()
    for round in 0..<stress.rounds(20) {
      let (lock, guarded, broken) = (FairReadWriteLock(), Guarded(), Census())
      let (readers, written) = (Census(), Census())
      let places = queues(2).map(Optional.some) + [nil, nil]
      let jobs = (0..<40).map { index in
        co_launch(on: places[index % places.count]) {
          var random = stress.random(round << 8 | index)
          for _ in 0..<60 {
            if random.next() % 4 == 0 {
              try lock.withWriteLock {
                if !guarded.enter() || readers.now != 0 { broken.change() }
                if random.next() % 8 == 0 { _ = try? co_yield() }
                guarded.leave()
                written.change()
              }
            } else {
              try lock.withReadLock {
                readers.change()
                if guarded.isInside { broken.change() }
                if random.next() % 8 == 0 { _ = try? co_yield() }
                readers.change(by: -1)
              }
            }
          }
        }
      }
      try await cancelSome(of: jobs, stress.random(round))
      for job in jobs { _ = try? await job.value }
      #expect(broken.now == 0, "\(stress.replay)")
      #expect(guarded.count == written.now, "\(stress.replay)")
      #expect(lock.tryLockWrite(), "somebody was cancelled and took the lock along; \(stress.replay)")
    }
  }

  /// Philosophers on all queues; they take forks in one order, so that only a lost hand-over could stop them.
  @Test func `philosophers dine, and none starves, although some are interrupted`() async throws {
    let stress = Stress()
    for round in 0..<stress.rounds(10) {
      let forks = (0..<7).map { _ in FairMutex() }
      let (meals, uneaten) = (Census(), Census())
      let places = queues(2).map(Optional.some) + [nil]
      let philosophers = (0..<7).map { seat in
        co_launch(on: places[seat % places.count]) {
          var random = stress.random(round << 8 | seat)
          let (first, second) = (min(seat, (seat + 1) % 7), max(seat, (seat + 1) % 7))
          for meal in 0..<200 {
            uneaten.change()
            // If a deadline interrupts it, it tries again for the same meal.
            var isHungry = true
            while isHungry {
              do {
                try co_timeout(random.next() % 16 == 0 ? .microseconds(50) : .seconds(600)) {
                  try forks[first].withLock {
                    try forks[second].withLock {
                      if meal % 16 == 0 { try co_yield() }
                    }
                  }
                }
                isHungry = false
              } catch is TimeoutError {}
            }
            uneaten.change(by: -1)
            meals.change()
          }
        }
      }
      for philosopher in philosophers { try await philosopher.value }
      #expect(meals.now == 7 * 200 && uneaten.now == 0, "\(stress.replay)")
      for fork in forks { #expect(fork.tryLock(), "\(stress.replay)") }
    }
  }
}

/// Cancels about a third of the jobs, in random order, from a thread of its own.
func cancelSome(of jobs: [Job<Void>], _ random: SeededRandom) async throws {
  try await onThreads(1) { _ in
    var random = random
    for (number, job) in jobs.shuffled(using: &random).prefix(jobs.count / 3).enumerated() {
      job.cancel(Mark(number: number))
      // Random time passes between them.
      for _ in 0..<(random.next() % 20_000) { blackHole(number) }
    }
  }
}

@inline(never)
private func blackHole(_: Int) {}
