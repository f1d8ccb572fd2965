import Coroutine
import CoroutineTesting
import Testing

// The code of the article A crawler.

struct WebPage: Sendable {
  var links: [String]
}

/// Fetches all pages that a page leads to: four at a time, ten a second, each of them once.
final class Crawler: Sendable {
  private let cache: Cache<String, WebPage>
  private let seen = ThreadMutex<Set<String>>([])

  init(_ get: @escaping @Sendable (String) throws -> WebPage) {
    let limiter = RateLimiter(10, per: .seconds(1), burst: 2)
    cache = Cache(lifetime: .seconds(60)) { url in
      try limiter.acquire()
      return try co_timeout(.seconds(5)) { try get(url) }
    }
  }

  func crawl(_ start: String) throws -> Set<String> {
    let work = Channel<String>(.unbounded)
    let open = WaitGroup()

    @Sendable func add(_ url: String) throws {
      guard seen.withLock({ $0.insert(url).inserted }) else { return }
      open.add()
      try work.send(url)
    }

    try add(start)
    try co_scope { scope in
      for number in 1...4 {
        scope.launch(name: "crawler \(number)") { [self] in
          try work.forEach { url in
            defer { open.done() }
            do {
              for link in try cache.value(for: url).links { try add(link) }
            } catch {
              try co_checkCancelled()
              print("\(url): \(error)")
            }
          }
        }
      }
      try open.wait()
      work.close()
    }
    return seen.withLock { $0 }
  }
}

@Suite("Crawler", .timeLimit(.minutes(10)))
struct CrawlerSnippets {
  private struct Gone: Error {}

  @Test(.simulated(.random(seeds: 50))) func `each page is fetched once, and not too fast`() throws {
    let site = ["a": ["b", "c"], "b": ["a", "c"], "c": ["d"]]
    let fetched = Channel<String>(.unbounded)
    let crawler = Crawler { url in
      try fetched.send(url)
      try co_delay(.milliseconds(30))
      guard let links = site[url] else { throw Gone() }
      return WebPage(links: links)
    }
    let began = co_now
    let pages = try crawler.crawl("a")
    #expect(pages == ["a", "b", "c", "d"])
    let calls = try fetched.receive(count: fetched.count)
    #expect(calls.sorted() == ["a", "b", "c", "d"])
    // Two at once, then one in 100 ms.
    #expect(co_now - began >= .milliseconds(200))
  }
}
