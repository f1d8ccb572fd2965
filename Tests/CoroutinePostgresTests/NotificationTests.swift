#if Postgres
import Coroutine
import CoroutinePostgres
import Testing

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
