#if Demo
import Coroutine

/// The store: an actor that owns the database's connection, so that readers that end at the same moment are served one
/// after the other, and nobody needs a lock.
///
/// A transaction blocks its thread: it runs on one that may block, while the actor, and with it every reader that has
/// asked for something, merely waits. The mailbox is bounded: who reads faster than the disk writes waits here, with
/// one batch in hand, instead of piling up items in memory.
struct Store: Sendable {
  enum Message: Sendable {
    case enter(name: String, Reply<StoredFeed>)
    case add([FeedItem], to: StoredFeed, Reply<Int>)
    case close(StoredFeed, title: String, Validators?, Reply<Void>)
  }

  private let actor: ActorRef<Message>

  /// The library belongs to the actor from here on.
  init(_ library: Library) {
    actor = co_actor(name: "store", mailbox: .bounded(16)) { mailbox in
      while let message = try mailbox.receive() {
        switch message {
        case .enter(let name, let reply):
          reply.settle { try library.feed(named: name) }
        case .add(let items, let feed, let reply):
          reply.settle { try library.add(items, to: feed) }
        case .close(let feed, let title, let validators, let reply):
          reply.settle { try library.close(feed, title: title, validators) }
        }
      }
    }
  }

  /// The feed of that name, entered now where it is new.
  ///
  /// Suspends until the actor has answered, as all of these do. Throws StoreFailure where the database cannot be
  /// written.
  func enter(_ name: String) throws -> StoredFeed { try actor.ask { .enter(name: name, $0) } }

  /// Stores those of `items` that are not there yet; returns how many were new.
  func add(_ items: [FeedItem], to feed: StoredFeed) throws -> Int { try actor.ask { .add(items, to: feed, $0) } }

  /// Notes the feed's title, and `validators` where it has been read to its end.
  func close(_ feed: StoredFeed, title: String, _ validators: Validators?) throws {
    try actor.ask { .close(feed, title: title, validators, $0) }
  }

  /// Blocks the thread until what has been asked for is done.
  func stop() throws {
    actor.stop()
    try actor.job.blockingWait()
  }
}

extension Reply where Answer: Sendable {
  /// Answers with what `body` returns, or fails with what it throws; `body` may block.
  fileprivate func settle(_ body: @escaping @Sendable () throws -> Answer) {
    do {
      self(try co_blocking(body))
    } catch {
      fail(error)
    }
  }
}
#endif
