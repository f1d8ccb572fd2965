#if Postgres
import Coroutine
import CoroutinePostgres
import Testing

@Suite(.timeLimit(.minutes(10)))
struct PipelineTests {
  @Test func `statements of many coroutines share a connection, and an error is its caller's alone`() async throws {
    try await withPool { db in
      try co_scope { scope in
        for number in 0..<50 {
          scope.launch {
            for round in 0..<20 {
              if (number + round) % 7 == 0 {
                #expect(state { try db.pipeline.run("select 1 / \(0)") } == "22012")
              } else {
                let sum = try db.pipeline.first("select \(number) * 1000 + \(round)", as: Int.self)
                #expect(sum == number * 1000 + round)
              }
            }
          }
        }
      }
      #expect(db.statistics.opened == 1)
    }
  }

  @Test func `a statement that always fails is prepared once, and one that cannot be prepared leaves nothing behind`()
    async throws
  {
    try await withPool { db in
      for _ in 0..<20 {
        #expect(state { try db.pipeline.run("select 1 / \(0)") } == "22012")
        #expect(state { try db.pipeline.run("select no_such_column") } == "42703")
      }
      let left: SQL = "select statement from pg_prepared_statements where statement like 'select %' order by 1"
      let statements = try db.pipeline.all(left, as: String.self)
      #expect(statements == ["select 1 / $1", left.description], "\(statements)")
    }
  }

  @Test func `the server keeps as many prepared statements of a pipeline as its limit says`() async throws {
    var options = PostgresPool.Options()
    options.statementCache = 8
    try await withPool(options) { db in
      try co_scope { scope in
        for number in 0..<16 {
          scope.launch {
            for round in 0..<20 {
              let name = "c\(number * 20 + round)"
              let rows = try db.pipeline.run("select 1 as \(identifier: name) where \(number) = \(number)")
              #expect(rows.columns == [name] && rows.count == 1)
            }
          }
        }
      }
      #expect(try db.pipeline.first("select count(*) from pg_prepared_statements", as: Int.self) == 8)
      #expect(db.statistics.opened == 1)
    }
  }

  @Test func `a cancelled caller throws at once, and a loss reaches all`() async throws {
    var options = PostgresPool.Options()
    // A caller that its deadline does not end would wait for a lock that is released after it.
    options.statementTimeout = .seconds(60)
    try await withPool(options) { db in
      let backend = try db.pipeline.first("select pg_backend_pid()", as: Int32.self)!
      let key = Int.random(in: 1...1_000_000_000)
      try db.withConnection { holder in
        try holder.run("select pg_advisory_lock(\(key))")
        #expect(throws: TimeoutError.self) {
          try co_timeout(.milliseconds(20)) { _ = try db.pipeline.run("select pg_advisory_xact_lock(\(key))") }
        }
        try holder.run("select pg_advisory_unlock(\(key))")
      }
      #expect(try db.pipeline.first("select 1", as: Int.self) == 1)
      let text = uniqueName("lost")
      let slow = SQL(unchecked: "select pg_sleep(60) /* \(text) */")
      // At once: one that began after the loss would run on the next connection, for as long as it takes.
      let jobs = (0..<5).map { _ in co_launch(start: .immediate) { kind { try db.pipeline.run(slow) } } }
      try db.waitForBackend(text)
      try db.run("select pg_terminate_backend(\(backend))")
      for job in jobs { #expect(try job.join() == .lost) }
      #expect(try db.pipeline.first("select 1", as: Int.self) == 1)
    }
  }

  @Test func `each statement of a pipeline gets its own answer while others are cancelled at random`() async throws {
    var options = PostgresPool.Options()
    options.pipelines = 2
    try await withPool(options) { db in
      let (answers, cancelled) = (ThreadMutex(0), ThreadMutex(0))
      let rounds = 100
      try co_scope { scope in
        for coroutine in 0..<48 {
          scope.launch {
            var random = SplitMix(seed: UInt64(coroutine))
            for round in 0..<rounds {
              let number = coroutine * 1_000 + round
              // Every second one waits as long as it takes: it would wait for ever for a statement that was not sent.
              let limit = coroutine.isMultiple(of: 2) ? nil : Duration.microseconds(Int64(random.next() % 4_000))
              do {
                try co_timeout(limit) {
                  if random.next() % 8 == 0 {
                    #expect(state { try db.pipeline.run("select \(number) / \(0)") } ?? "22012" == "22012")
                    try co_checkCancelled()
                  } else {
                    #expect(try db.pipeline.first("select \(number) + 0", as: Int.self) == number)
                  }
                }
                answers.withLock { $0 += 1 }
              } catch is TimeoutError { cancelled.withLock { $0 += 1 } }
            }
          }
        }
      }
      #expect(answers.withLock { $0 } + cancelled.withLock { $0 } == 48 * rounds)
      #expect(cancelled.withLock { $0 } > 0)
      // Nobody is left who drives, and nothing that was not sent.
      for number in 0..<8 { #expect(try db.pipeline.first("select \(number) + 0", as: Int.self) == number) }
      #expect(db.statistics.closed == 0)
    }
  }

  @Test func `statements for which the socket has no room arrive whole, behind each other`() async throws {
    try await withPool { db in
      try co_scope { scope in
        for number in 0..<24 {
          scope.launch {
            let text = String(repeating: String(number % 10), count: 400_000 + number)
            let back = try db.pipeline.first("select length(\(text)), right(\(text), 1)", as: (Int, String).self)
            #expect(back?.0 == text.count && back?.1 == String(number % 10))
          }
        }
      }
    }
  }

  /// libpq reads while the socket has no room for what it sends, and then nothing wakes the reader.
  @Test func `a result that comes while a long statement is sent does not wait for that one's result`() async throws {
    try await withPool { db in
      try db.pipeline.run("select 1")
      let text = String(repeating: "x", count: 24 << 20)
      let key = Int.random(in: 1...1_000_000_000)
      try db.withConnection { holder in
        for _ in 0..<2 {
          // The long one has no result before the short one has.
          try holder.run("select pg_advisory_lock(\(key))")
          try co_scope { scope in
            // At once, or it might be behind the long one.
            let short = co_launch(start: .immediate) { try db.pipeline.run("select 1").count }
            let long = scope.launch {
              try db.pipeline.first("select length(\(text)) from pg_advisory_xact_lock(\(key))", as: Int.self)
            }
            #expect(try co_timeout(.seconds(300)) { try short.join() } == 1)
            try holder.run("select pg_advisory_unlock(\(key))")
            #expect(try long.join() == text.utf8.count)
          }
        }
      }
    }
  }

  @Test func `statements under way get an error at the end of their pool, and none waits for ever`() async throws {
    try await withPool { db in
      try co_scope { scope in
        let text = uniqueName("marker")
        let jobs = (0..<8).map { _ in
          scope.launch { kind { try db.pipeline.run("select pg_sleep(60) /* \(SQL(unchecked: text)) */") } }
        }
        let others = (0..<8).map { _ in
          scope.launch {
            // Behind the others, or not sent yet.
            while true { if let end = kind({ try db.pipeline.run("select 1") }) { return end } }
          }
        }
        try db.waitForBackend(text)
        try db.close(drain: .zero)
        // One that was not sent yet finds the pool closed.
        let ends: [PostgresError.Kind?] = [.lost, .ended]
        for job in jobs { #expect(ends.contains(try job.join())) }
        for job in others { #expect(ends.contains(try job.join())) }
      }
    }
  }
}

/// A generator whose numbers are the same in each run.
private struct SplitMix {
  var state: UInt64
  init(seed: UInt64) { state = seed }
  mutating func next() -> UInt64 {
    state &+= 0x9E37_79B9_7F4A_7C15
    var z = state
    z = (z ^ (z >> 30)) &* 0xBF58_476D_1CE4_E5B9
    z = (z ^ (z >> 27)) &* 0x94D0_49BB_1331_11EB
    return z ^ (z >> 31)
  }
}
#endif
