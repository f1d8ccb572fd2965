import Coroutine
import CoroutineTesting
import Testing

/// Every schedule of three coroutines with three operations each or more, of at most two preemptions.
///
/// Of at most one under sanitizers; the builds without them search all of them.
@Suite(.timeLimit(.minutes(10)))
struct LinearizabilityTests {
  private func check<Model: Sendable>(
    _ model: Model,
    _ program: @escaping @Sendable (History<Model>) throws -> [@Sendable () throws -> Void],
    last: @escaping @Sendable (History<Model>) -> Void = { _ in }
  ) {
    let found = explore(.exhaustive(preemptions: isSanitized ? 1 : 2)) {
      let history = History<Model>()
      let jobs = try program(history).map { co_launch($0) }
      for job in jobs.dropLast() { try job.join() }
      last(history)
      try jobs.last?.join()
      if !history.isLinearizable(from: model) { throw Broken("not linearizable") }
    }
    #expect(found.failure == nil, "\(found.failure?.description ?? "")")
    #expect(found.isComplete)
    #expect(found.runs > 100)
  }

  private struct Buffer: Sendable {
    var values: [Int] = []
    var isClosed = false
  }

  @Test(arguments: [1, 2]) func `a channel is linearizable`(capacity: Int) {
    let channel = Cell(Channel<Int>(.bounded(capacity)))
    check(
      Buffer(),
      { history in
        channel.value = Channel<Int>(.bounded(capacity))
        let channel = channel.value
        return [
          {
            for value in 1...3 {
              try history({ try channel.send(value) }) { model, _ in
                defer { model.values.append(value) }
                return model.values.count < capacity
              }
            }
          },
          {
            co_point()
            history({ channel.trySend(9) }) { model, answer in
              if answer == .full { return model.values.count >= capacity }
              model.values.append(9)
              return answer == .sent && model.values.count <= capacity
            }
            co_point()
            history({ channel.tryReceive() }) { model, answer in
              guard case .received(let value) = answer else { return model.values.isEmpty }
              return !model.values.isEmpty && model.values.removeFirst() == value
            }
            co_point()
            history({ channel.count }) { model, answer in model.values.count == answer }
          },
          {
            for _ in 0..<3 {
              try history({ try channel.receive() }) { model, answer in
                guard let answer else { return model.isClosed && model.values.isEmpty }
                return !model.values.isEmpty && model.values.removeFirst() == answer
              }
            }
          },
        ]
      },
      last: { history in
        history({ channel.value.close() }) { model, _ in
          model.isClosed = true
          return true
        }
      }
    )
  }

  private struct Topic: Sendable {
    var kept: [Int] = []
    var missed = 0
    mutating func add(_ value: Int, capacity: Int) {
      kept.append(value)
      if kept.count > capacity {
        kept.removeFirst()
        missed += 1
      }
    }
  }

  @Test(arguments: [1, 2]) func `a broadcast is linearizable`(capacity: Int) {
    check(Topic()) { history in
      let broadcast = Broadcast<Int>(capacity)
      let subscription = broadcast.subscribe()
      let sending: @Sendable ([Int]) throws -> Void = { values in
        for value in values {
          co_point()
          try history({ try broadcast.send(value) }) { model, count in
            model.add(value, capacity: capacity)
            return count == 1
          }
        }
      }
      return [
        { try sending([1, 2]) },
        { try sending([3, 4]) },
        {
          var seen = 0
          while seen < 4 {
            do {
              try history({
                let value = try subscription.receive()
                seen += 1
                return value
              }) { model, answer in
                if model.missed > 0 || model.kept.isEmpty { return false }
                return model.kept.removeFirst() == answer
              }
            } catch let error as SubscriptionLaggedError {
              seen += error.missed
              history({ error.missed }) { model, missed in
                // The receive was told before this: later misses may have come since.
                defer { model.missed -= missed }
                return model.missed >= missed
              }
            }
          }
        },
      ]
    }
  }

  @Test func `a watch is linearizable`() {
    check(0) { history in
      let watch = Watch(0)
      let subscription = watch.subscribe()
      return [
        {
          for value in [10, 20] {
            co_point()
            try history({ try watch.send(value) }) { model, _ in
              model = value
              return true
            }
          }
        },
        {
          for _ in 0..<2 {
            try history({
              try watch.update { value in
                co_point()
                value += 1
                return value
              }
            }) { model, answer in
              model += 1
              return model == answer
            }
          }
        },
        {
          try history({ try subscription.receive() }) { model, answer in model == answer }
          try history({ try watch.wait { $0 > 0 } }) { model, answer in model == answer }
          history({ watch.value }) { model, answer in model == answer }
        },
      ]
    }
  }

  @Test func `a mutex is linearizable`() {
    check(false) { history in
      let lock = FairMutex()
      let locking: @Sendable () throws -> Void = {
        try history({ try lock.lock() }) { isLocked, _ in
          defer { isLocked = true }
          return !isLocked
        }
        co_point()
        history({ lock.unlock() }) { isLocked, _ in
          defer { isLocked = false }
          return isLocked
        }
      }
      let trying: @Sendable () throws -> Void = {
        co_point()
        var hasLocked = false
        history({
          hasLocked = lock.tryLock()
          return hasLocked
        }) { isLocked, answer in
          defer { isLocked = true }
          return answer != isLocked
        }
        if !hasLocked { return }
        history({ lock.unlock() }) { isLocked, _ in
          defer { isLocked = false }
          return isLocked
        }
      }
      return [
        {
          try locking()
          try locking()
        },
        {
          try locking()
          try trying()
        },
        {
          try trying()
          try locking()
        },
      ]
    }
  }

  @Test func `a semaphore is linearizable`() {
    check(2) { history in
      let permits = FairSemaphore(2)
      let using: @Sendable () throws -> Void = {
        try history({ try permits.acquire() }) { available, _ in
          available -= 1
          return available >= 0
        }
        co_point()
        history({ permits.release() }) { available, _ in
          available += 1
          return available <= 2
        }
        co_point()
        history({ permits.available }) { available, answer in available == answer }
      }
      return [using, using, using]
    }
  }

  private struct Readers: Sendable {
    var readers = 0
    var isWritten = false
  }

  @Test func `a read-write lock is linearizable`() {
    check(Readers()) { history in
      let lock = FairReadWriteLock()
      let reading: @Sendable () throws -> Void = {
        try history({ try lock.lockRead() }) { model, _ in
          model.readers += 1
          return !model.isWritten
        }
        co_point()
        history({ lock.unlockRead() }) { model, _ in
          model.readers -= 1
          return model.readers >= 0
        }
      }
      let writing: @Sendable () throws -> Void = {
        try history({ try lock.lockWrite() }) { model, _ in
          defer { model.isWritten = true }
          return !model.isWritten && model.readers == 0
        }
        co_point()
        history({ lock.unlockWrite() }) { model, _ in
          defer { model.isWritten = false }
          return model.isWritten
        }
      }
      return [
        {
          try reading()
          try reading()
        },
        {
          try writing()
          try reading()
        },
        {
          try reading()
          try writing()
        },
      ]
    }
  }

  @Test func `a buffer that waits on a condition is linearizable`() {
    let count = isSanitized ? 1 : 3
    check([Int]()) { history in
      let lock = FairMutex()
      let (notEmpty, notFull) = (Condition(lock), Condition(lock))
      let buffer = Cell<[Int]>([])
      let put: @Sendable (Int) throws -> Void = { value in
        try history({
          try lock.withLock {
            try notFull.wait { buffer.value.isEmpty }
            buffer.value.append(value)
            notEmpty.signal()
          }
        }) { model, _ in
          model.append(value)
          return model.count == 1
        }
      }
      let take: @Sendable () throws -> Void = {
        try history({
          try lock.withLock {
            try notEmpty.wait { !buffer.value.isEmpty }
            defer { notFull.signal() }
            return buffer.value.removeFirst()
          }
        }) { model, answer in !model.isEmpty && model.removeFirst() == answer }
      }
      return [
        { for value in 1...count { try put(value) } },
        // In this order: whatever comes last, a take finds a value, and a put finds room.
        {
          try put(4)
          try take()
          try put(5)
        },
        { for _ in 0..<count { try take() } },
      ]
    }
  }

  @Test func `a promise is linearizable`() {
    check(Int?.none) { history in
      let promise = Promise<Int>()
      let settle: @Sendable (Int) -> Void = { value in
        co_point()
        history({ promise.fulfill(value) }) { model, _ in
          model = model ?? value
          return true
        }
      }
      let wait: @Sendable () throws -> Void = {
        try history({ try co_await(promise) }) { model, answer in model == answer }
      }
      return [
        {
          settle(1)
          try wait()
          try wait()
        },
        {
          try wait()
          settle(2)
          try wait()
        },
        {
          settle(3)
          try wait()
          settle(4)
        },
      ]
    }
  }
}
