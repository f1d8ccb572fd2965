#if Demo
import Coroutine

/// The reading of one feed: open it, parse it as it arrives, store what is new.
///
/// Belongs to the coroutine that reads; `report` is what others get a copy of.
final class FeedReading {
  /// As many items are stored in one transaction, and no more are ever held.
  private static let batchSize = 200
  /// How many bytes pass between two messages to the display, at most.
  private static let stride = 65_536
  private let source: Source
  private let reader: FeedReader
  private let index: Int
  private var batch: [FeedItem] = []
  private var told = 0
  /// Whether an answer has begun to arrive: a connection that is lost then is not one that could not be made.
  private var isOpen = false
  var report: FeedReport

  init(of source: Source, by reader: FeedReader, at index: Int) {
    (self.source, self.reader, self.index) = (source, reader, index)
    report = FeedReport(name: source.name)
  }

  func tell(_ event: FeedNews.Event) {
    _ = reader.news.trySend(FeedNews(index: index, event: event, report: report))
  }

  /// Suspends wherever the network, the parser's stream or the store lets it wait.
  func run() throws {
    let feed = try reader.store.enter(source.name)
    report.title = feed.title
    guard let document = try reader.opener.open(source, known: feed.validators) else {
      report.outcome = .unchanged
      return
    }
    defer { document.close() }
    isOpen = true
    report.expectedBytes = document.expectedBytes
    do {
      let parts = parts(of: document)
      while case .yielded(let part) = try parts.step() { try take(part, into: feed) }
    } catch {
      // Whatever ended it: what has been read is kept.
      try finish(feed, nil)
      throw error
    }
    try finish(feed, document.validators)
    report.outcome = .read
  }

  /// The feed's parts, each parsed when it is asked for, from bytes that are read when the parser asks for them.
  private func parts(of document: FeedDocument) -> Generator<FeedPart, Never, Void> {
    let meter = Meter(document.bytes) { [self] bytes in
      report.bytes = bytes
      // A small feed that comes slowly is worth a message for each fiftieth of it.
      guard bytes >= told + min(Self.stride, (report.expectedBytes ?? .max) / 50) else { return }
      told = bytes
      tell(.progressed)
    }
    let pieces = xmlPieces(of: Prolog(meter, charset: document.charset), blanks: false, entity: HTMLEntities.character)
    return feedParts(in: pieces, base: document.base)
  }

  private func take(_ part: FeedPart, into feed: StoredFeed) throws {
    switch part {
    case .title(let title):
      report.title = title
    case .item(let item):
      report.items += 1
      batch.append(item)
      if batch.count == Self.batchSize { try storeBatch(in: feed) }
    }
  }

  /// Shielded: a batch that is on its way to the store is waited for, whoever cancels, or nobody would know what became
  /// of it.
  private func storeBatch(in feed: StoredFeed) throws {
    if batch.isEmpty { return }
    defer { batch.removeAll(keepingCapacity: true) }
    report.new += try co_shield { try reader.store.add(batch, to: feed) }
  }

  /// What is left; `validators` are those of a version that has been read to its end.
  private func finish(_ feed: StoredFeed, _ validators: Validators?) throws {
    try storeBatch(in: feed)
    try co_shield { try reader.store.close(feed, title: report.title, validators) }
  }

  /// What an error means for this feed.
  func explain(_ error: any Error) -> FeedFailure {
    switch error {
    case let failure as FeedFailure: failure
    case let error as HTTPError:
      if isOpen, case .unreachable(_, let reason) = error {
        .brokeOff(source.name, reason: reason)
      } else {
        .http(error)
      }
    case let failure as XMLFailure:
      failure.reason == XMLFailure.notXML ? .notAFeed(source.name, what: "not XML") : .malformed(source.name, failure)
    case let other as NotAFeed: .notAFeed(source.name, what: other.what)
    case let failure as FileBytes.Failure:
      failure.isMissing ? .notAnAddress(source.argument) : .file(source.name, reason: failure.description)
    case let failure as StoreFailure: .notStored(source.name, failure)
    case is SpoolOverflow, is OutputError: .brokeOff(source.name, reason: "\(error)")
    case is TimeoutError: .timedOut(source.name, seconds: reader.timeout)
    case is Interrupted, is CancellationError: .interrupted(source.name)
    default: .unforeseen(source.name, "\(error)")
    }
  }
}
#endif
