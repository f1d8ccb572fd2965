import Coroutine
import CoroutineTesting
import Dispatch
import Testing

// The code of the guide's articles, run in worlds. This file: LaunchingAndWaiting.md, CancellationAndTime.md,
// ScopesAndStructure.md. scripts/lint holds each block of an article against the file that it names.

private struct Page: Sendable, Equatable {
  var text: String
}

private func fetch(_ path: String) throws -> Page {
  try co_delay(.milliseconds(20))
  return Page(text: path)
}

/// A protocol of a library that knows nothing of coroutines.
private protocol TemplateVisitor {
  mutating func visit(name: String) throws
}

/// The visitor waits, although neither the protocol nor the template is async.
private struct Renderer: TemplateVisitor {
  let prices: Channel<Int>
  var result = ""
  mutating func visit(name: String) throws {
    let price = try prices.receive() ?? 0
    result += "\(name): \(price)\n"
  }
}

@Suite("What the guide shows of launches and structure", .inWorlds, .timeLimit(.minutes(10)))
struct GuideSnippets {
  @Test func `a visitor waits`() throws {
    let prices = Channel<Int>(1)
    try prices.send(3)
    var renderer = Renderer(prices: prices)
    try renderer.visit(name: "milk")
    #expect(renderer.result == "milk: 3\n")
  }

  @Test func `launches`() throws {
    let queue = DispatchQueue(label: "orders")
    let job = co_launch(on: queue, name: "first order") {
      let page = try fetch("/orders/1")
      return page.text.count
    }
    let length = try job.join()
    #expect(length == 9)
  }

  @Test func `two at once`() throws {
    let profile = co_launch { try fetch("/profile") }
    let news = co_launch { try fetch("/news") }
    let page = try profile.join().text + news.join().text
    #expect(page == "/profile/news")
  }

  @Test func `a cancellation is thrown by the wait`() throws {
    let job = co_launch(name: "poll") {
      defer { print("the poll has ended") }
      while true {
        _ = try fetch("/news")
        try co_delay(.seconds(10))
      }
    }
    job.cancel()
    #expect(throws: CancellationError.self) { try job.join() as Void }
  }

  @Test func `a loop that swallows`() throws {
    func update() throws -> Page? {
      do {
        return try fetch("/news")
      } catch {
        try co_checkCancelled()
        print("no news: \(error)")
        return nil
      }
    }
    let page = try update()
    #expect(page == Page(text: "/news"))
  }

  @Test func `deadlines`() throws {
    let page = try co_timeout(.seconds(5)) {
      let address = try fetch("/address").text
      return try fetch(address)
    }
    #expect(page.text == "/address")
    #expect(throws: TimeoutError.self) { try co_timeout(.seconds(1)) { try co_delay(.seconds(2)) } }
  }

  @Test func `a shield`() throws {
    let journal = Channel<String>(1)
    func store(_ line: String) throws {
      defer { try? co_shield { try journal.send("stored \(line)") } }
      try co_delay(.seconds(1))
    }
    let job = co_launch { try store("a") }
    try settleWorld()
    job.cancel()
    #expect(throws: CancellationError.self) { try job.join() }
    #expect(journal.count == 1)
  }

  @Test func `a scope`() throws {
    func page(of user: String) throws -> String {
      try co_scope { scope in
        let profile = scope.launch(name: "profile") { try fetch("/\(user)") }
        let news = scope.launch(name: "news") { try fetch("/\(user)/news") }
        return try profile.join().text + news.join().text
      }
    }
    let text = try page(of: "ann")
    #expect(text == "/ann/ann/news")
  }

  @Test func `isolated failures`() throws {
    let queue = Channel<Int>(3)
    for number in 1...3 { try queue.send(number) }
    queue.close()
    let done = Locked(0)
    func handle(_ number: Int) throws {
      if number == 2 { throw TimeoutError() }
      done.withLock { $0 += 1 }
    }
    try co_scope(failures: .isolated) { scope in
      try queue.forEach { order in
        scope.launch(name: "order \(order)") {
          do { try handle(order) } catch { print("order \(order): \(error)") }
        }
      }
    }
    #expect(done.current == 2)
  }

  @Test func `launches with a limit`() throws {
    let urls = (1...20).map { "/\($0)" }
    let stored = ThreadMutex<[String]>([])
    @Sendable func store(_ page: Page) throws { stored.withLock { $0.append(page.text) } }
    _ = try co_map(urls, limit: 8) { url in try store(fetch(url)) }
    #expect(stored.withLock { $0.count } == 20)
  }

  @Test func `the first of several`() throws {
    let mirrors = ["/slow", "/fast"].map { path in co_launch { try fetch(path) } }
    let fastest = try co_race(mirrors)
    #expect(fastest.text.count == 5)
  }

  @Test func `a local`() throws {
    let requestID = CoroutineLocal(default: "none")
    let seen = try requestID.withValue("r-17") {
      try co_launch { requestID.value }.join()
    }
    #expect(seen == "r-17")
  }
}
