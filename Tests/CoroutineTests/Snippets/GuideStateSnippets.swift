import Coroutine
import CoroutineTesting
import Dispatch
import Testing

// The code of the guide's articles, run in worlds. This file: ChannelsAndSelect.md, State.md, Promises.md, Testing.md,
// MemoryAndStacks.md, Tuning.md.

private enum Command: Sendable {
  case add(String, Int)
  case count(of: String, Reply<Int>)
}

private func startStock() -> ActorRef<Command> {
  co_actor(of: Command.self, name: "stock") { mailbox in
    var counts: [String: Int] = [:]
    while let command = try mailbox.receive() {
      switch command {
      case .add(let item, let count): counts[item, default: 0] += count
      case .count(let item, let reply): reply(counts[item] ?? 0)
      }
    }
  }
}

private func startDownload(_ done: @escaping @Sendable (String?, (any Error)?) -> Void) -> DispatchWorkItem {
  let item = DispatchWorkItem {}
  done("page", nil)
  return item
}

private func download(_ url: String) throws -> String {
  try co_delay(.milliseconds(10))
  return "page \(url)"
}

/// One download for all callers that ask for the same URL at once, and four downloads at a time.
private final class Downloads: Sendable {
  private let flights = SingleFlight<String, String>()
  private let places = FairSemaphore(4)

  func page(_ url: String) throws -> String {
    try flights.run(url) { [places] in
      try places.withPermit { try co_timeout(.seconds(5)) { try download(url) } }
    }
  }
}

/// Visits a tree: a coroutine for each page, and eight downloads at a time.
private func visit(_ page: Int, in scope: Scope, _ places: FairSemaphore, _ links: @escaping Links) throws {
  let children = try places.withPermit { try links(page) }
  for child in children {
    scope.launch { try visit(child, in: scope, places, links) }
  }
}

private typealias Links = @Sendable (Int) throws -> [Int]

@Suite("What the guide shows of channels and state", .inWorlds, .timeLimit(.minutes(10)))
struct GuideStateSnippets {
  @Test func `a pipeline`() throws {
    var sum = 0
    let numbers = Channel<Int>(10)
    co_launch(name: "producer") {
      for number in 1...100 { try numbers.send(number) }
      numbers.close()
    }
    try numbers.forEach { number in sum += number }
    #expect(sum == 5_050)
  }

  private enum Event: Equatable {
    case order(Int)
    case tick
    case closed
    case stop
  }

  @Test func `a select`() throws {
    let orders = Channel<Int>(1)
    try orders.send(7)
    orders.close()
    let ticker = co_ticker(every: .seconds(1))
    func nextEvent() throws -> Event {
      try co_select {
        orders.onReceive { order in order.map { .order($0) } ?? .closed }
        ticker.onTick { _ in .tick }
        co_stopping.onAwait { _ in .stop }
      }
    }
    let first = try nextEvent()
    let second = try nextEvent()
    #expect(first == .order(7) && second == .closed)
  }

  @Test func `an actor owns the stock`() throws {
    let stock = startStock()
    try stock.tell(.add("book", 3))
    let count = try stock.ask(timeout: .seconds(1)) { .count(of: "book", $0) }
    #expect(count == 3)
    stock.stop()
    try stock.job.join()
  }

  /// On a serial queue no lock is needed, as long as no wait lies between reading and writing.
  private final class Visits: @unchecked Sendable {
    // Sound because every coroutine that uses it runs on `queue`.
    let queue = DispatchQueue(label: "visits")
    private var counts: [String: Int] = [:]

    func add(_ page: String) throws -> Int {
      try co_launch(on: queue) { [self] in
        counts[page, default: 0] += 1
        return counts[page] ?? 0
      }.join()
    }
  }

  @Test func `a queue owns the visits`() throws {
    let visits = Visits()
    let results = try co_map(1...3, limit: 3) { _ in try visits.add("/") }
    #expect(results.sorted() == [1, 2, 3])
  }

  @Test func `one download for all callers, and four at a time`() throws {
    let downloads = Downloads()
    let began = co_now
    try co_scope { scope in
      for number in 0..<24 {
        scope.launch {
          let page = try downloads.page("\(number % 8)")
          #expect(page == "page \(number % 8)")
        }
      }
    }
    #expect(co_now - began == .milliseconds(20))
  }

  @Test func `a tree, eight pages at a time`() throws {
    let (visited, open) = (ThreadMutex<[Int]>([]), ThreadMutex((now: 0, most: 0)))
    try co_scope { scope in
      try visit(1, in: scope, FairSemaphore(8)) { page in
        open.withLock { $0 = ($0.now + 1, max($0.most, $0.now + 1)) }
        try co_delay(.milliseconds(10))
        open.withLock { $0.now -= 1 }
        visited.withLock { $0.append(page) }
        return page < 100 ? [2 * page, 2 * page + 1] : []
      }
    }
    #expect(visited.withLock { $0.sorted() } == Array(1...199))
    #expect(open.withLock { $0.most } == 8)
  }

  @Test func `a permit, or the stop`() throws {
    let places = FairSemaphore(1)
    func worksOnce() throws -> Bool {
      let isOurs: Bool = try co_select {
        places.onAcquire { true }
        co_stopping.onAwait { _ in false }
      }
      guard isOurs else { return false }
      defer { places.release() }
      return true
    }
    try co_scope { scope in
      let worked = try worksOnce()
      #expect(worked && places.available == 1)
      try places.acquire()
      let job = scope.launch { try worksOnce() }
      try settleWorld()
      scope.stop(within: .seconds(5))
      let workedAgain = try job.join()
      #expect(!workedAgain && places.available == 0)
    }
  }

  @Test func `a callback becomes a result`() throws {
    func download() throws -> String {
      var item: DispatchWorkItem?
      defer { item?.cancel() }
      return try co_suspend { done in
        item = startDownload { text, error in done(text, error) }
      }
    }
    let text = try download()
    #expect(text == "page")
  }

  @Test func `stacks`() throws {
    func depth(_ count: Int) -> Int { count == 0 ? 0 : 1 + depth(count - 1) }
    let parser = co_launch(name: "parser", stack: .bytes(4 << 20)) { depth(10_000) }
    let result = try parser.join()
    #expect(result == 10_000)
    func order(in body: Int) throws -> Int { try co_withStack(.bytes(4 << 20)) { depth(body) } }
    #expect(try order(in: 10_000) == 10_000)
  }

  @Test func `a queue of its own, and the workers`() throws {
    let reports = DispatchQueue(label: "reports")
    let job = co_launch(on: reports) {
      let slow = co_launch(on: WorkerPoolExecutor.shared) { (1...1_000).reduce(0, +) }
      return try slow.join()
    }
    let sum = try job.join()
    #expect(sum == 500_500)
  }

  @Test func `a long loop`() throws {
    func checksum(_ bytes: [UInt8]) throws -> Int {
      var sum = 0
      for (index, byte) in bytes.enumerated() {
        sum &+= Int(byte)
        if index % 100_000 == 99_999 { try co_yield() }
      }
      return sum
    }
    let sum = try checksum([UInt8](repeating: 1, count: 100_001))
    #expect(sum == 100_001)
  }
}

// MARK: Testing.md

/// Sends what it is given in parts of ten, or after a second without anything new.
private func batch(_ items: Channel<Int>, _ send: ([Int]) throws -> Void) throws {
  var part: [Int] = []
  while true {
    let item: Int?? = try co_select {
      items.onReceive { .some($0) }
        .onTimeout(.seconds(1)) { .none }
    }
    if case .some(.some(let item)) = item { part.append(item) }
    let isClosed = item == .some(.none)
    if part.count == 10 || (item == nil || isClosed) && !part.isEmpty {
      try send(part)
      part = []
    }
    if isClosed { return }
  }
}

@Suite("Batches")
struct BatchTests {
  @Test(.simulated(.random(seeds: 50))) func `a part goes after a second, or when it is full`() throws {
    let items = Channel<Int>()
    var sent: [[Int]] = []
    let producer = co_launch {
      for item in 1...12 { try items.send(item) }
      try co_delay(.seconds(5))
      try items.send(13)
      items.close()
    }
    try batch(items) { sent.append($0) }
    try producer.join()
    #expect(sent == [Array(1...10), [11, 12], [13]])
  }
}
