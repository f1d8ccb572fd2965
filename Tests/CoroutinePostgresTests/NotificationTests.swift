#if Postgres
import Coroutine
import CoroutinePostgres
import Testing

@Suite(.timeLimit(.minutes(10)))
struct NotificationTests {
  @Test func `a notification arrives when its transaction commits`() async throws {
    try await withPool { db in
      let channel = uniqueName("Channel \"x\"")
      let notifications = try db.listen(channel)
      #expect(try notifications.receive() == .gap)
      try? db.transaction { t in
        try t.notify(channel, "lost")
        throw CancellationError()
      }
      try db.transaction { t in
        try t.notify(channel, "kept")
        try t.notify(channel)
      }
      guard case .payload("kept", let sender)? = try notifications.receive() else {
        Issue.record("another payload")
        return
      }
      #expect(sender > 0)
      #expect(try notifications.receive() == .payload("", from: sender))
      // A second channel uses the same connection.
      let second = try db.listen(uniqueName("other"))
      #expect(try second.receive() == .gap)
      let value = try co_select {
        notifications.onReceive { _ in "first" }
        SelectCase<String>.onTimeout(.milliseconds(20)) { "none" }
      }
      #expect(value == "none")
      notifications.stop()
      #expect(try notifications.receive() == nil)
      #expect(state { try db.transaction { try $0.notify(channel, String(repeating: "x", count: 8000)) } } == "22023")
      #expect(state { _ = try db.listen(String(repeating: "x", count: 64)) } == "42622")
    }
  }

  @Test func `a listener that is too slow gets a gap`() async throws {
    try await withPool { db in
      let channel = uniqueName("slow")
      let quick = uniqueName("quick")
      let slow = try db.listen(channel, buffer: 2)
      let other = try db.listen(quick)
      #expect(try slow.receive() == .gap)
      #expect(try other.receive() == .gap)
      for number in 0..<5 { try db.transaction { try $0.notify(channel, "\(number)") } }
      try db.transaction { try $0.notify(quick) }
      _ = try other.receive()
      var seen: [String] = []
      for _ in 0..<3 {
        switch try slow.receive() {
        case .payload(let text, _)?: seen.append(text)
        case .gap?: seen.append("gap")
        case nil: seen.append("end")
        }
      }
      #expect(seen == ["0", "1", "gap"])
      try db.transaction { try $0.notify(channel, "later") }
      if case .payload(let text, _)? = try slow.receive() { #expect(text == "later") }
    }
  }

  @Test func `a listener ends with its last reference, and the connection with the last listener`() async throws {
    try await withPool { db in
      let channel = uniqueName("ends")
      let ends: [() throws -> Void] = [
        { try db.listen(channel).stop() }, { _ = try db.listen(channel).receive() },
        { for _ in try db.listen(channel) { break } },
        { try? db.listen(channel).forEach { _ in throw CancellationError() } },
        {
          let job = co_launch {
            for next in try db.listen(channel) where next != .gap { Issue.record("a notification") }
          }
          while db.statistics.opened == db.statistics.closed + db.statistics.idle { try co_yield() }
          job.cancel()
          _ = try? job.join()
        },
      ]
      for (number, end) in ends.enumerated() {
        try end()
        // Nothing wakes the reader but the end itself.
        while db.statistics.closed <= number { try co_yield() }
        #expect(db.statistics.opened == number + 1)
      }
      let kept = try db.listen(channel)
      weak var dropped: PostgresNotifications?
      for _ in 0..<100 {
        let other = try db.listen(channel)
        dropped = other
        _ = try other.receive()
      }
      #expect(dropped == nil && db.statistics.closed == ends.count)
      #expect(try kept.receive() == .gap)
      try db.transaction { try $0.notify(channel, "still") }
      if case .payload(let text, _)? = try kept.receive() { #expect(text == "still") }
    }
  }

  @Test func `notices of the server reach their handler`() async throws {
    let notices = ThreadMutex<[PostgresError]>([])
    var options = PostgresPool.Options()
    options.onNotice = { notice in notices.withLock { $0.append(notice) } }
    try await withPool(options) { db in
      let raise: SQL = "do $$ begin raise notice 'hello' using hint = 'there'; end $$"
      try db.run(raise)
      try db.pipeline.run(raise)
      let all = notices.withLock { $0 }
      #expect(all.count == 2 && all.allSatisfy { $0.kind == .notice && $0.message == "hello" && $0.hint == "there" })
    }
  }

  @Test func `a listener survives the loss of its connection, with a gap`() async throws {
    try await withPool { db in
      let channel = uniqueName("loss")
      let notifications = try db.listen(channel)
      #expect(try notifications.receive() == .gap)
      try db.run("select pg_terminate_backend(pid) from pg_stat_activity where query like \("listen%" + channel + "%")")
      #expect(try notifications.receive() == .gap)
      try db.transaction { try $0.notify(channel, "again") }
      if case .payload(let text, _)? = try notifications.receive() { #expect(text == "again") }
    }
  }
}
#endif
