import Testing

@testable import Coroutine

/// The inbox of a scheduler.
@Suite(.timeLimit(.minutes(10)))
struct InboxTests {
  /// A piece of work with a number.
  ///
  /// The work is the first field, so that its address is the item's.
  private struct Item {
    var work = WorkItem { _ in }
    let number: Int
  }

  /// The inbox of a worker, in an object because expectations copy what they look at.
  private final class Post {
    let inbox = Inbox()
    let worker = WorkerState(0)

    func push(_ number: Int) -> Bool {
      let item = UnsafeMutablePointer<Item>.allocate(capacity: 1)
      item.initialize(to: Item(number: number))
      return inbox.push(.work(UnsafeMutableRawPointer(item).assumingMemoryBound(to: WorkItem.self)))
    }
    func push(_ place: Place) -> Bool { inbox.push(.job(place.job)) }
    func goIdle() -> Bool { inbox.goIdle() }

    func numbers() -> [Int] {
      var numbers: [Int] = []
      inbox.takeAll(as: .passUnretained(worker)) { message in
        guard case .work(let item) = message else { return }
        let numbered = UnsafeMutableRawPointer(item).assumingMemoryBound(to: Item.self)
        numbers.append(numbered.pointee.number)
        numbered.deallocate()
      }
      return numbers
    }
  }

  /// A job of which only the address and the link are used.
  private final class Place {
    let job = JobRef.allocate(capacity: 1)
    deinit { job.deallocate() }
  }

  @Test func `the push that finds it idle starts a drain, and no other`() {
    let post = Post()
    #expect(post.push(1))
    #expect(!post.push(2))
    #expect(!post.goIdle())
    #expect(post.numbers() == [1, 2])
    #expect(post.goIdle())
    #expect(post.push(3))
    #expect(post.numbers() == [3])
  }

  @Test func `messages that a rescuer leaves stay in order, below newer ones`() {
    let post = Post()
    let places = [Place(), Place()]
    _ = post.push(1)
    _ = post.push(places[0])
    _ = post.push(2)
    _ = post.push(places[1])
    _ = post.push(3)
    var next = 4
    var taken = post.inbox.takeOut(from: post.worker) { message in
      guard case .job = message else { return false }
      _ = post.push(next)
      next += 1
      return true
    }
    #expect(!taken.mustStart)
    for place in places {
      guard case .job(place.job)? = taken.messages.popFirst() else {
        Issue.record("not the oldest job first")
        return
      }
    }
    #expect(taken.messages.popFirst() == nil)
    #expect(post.numbers() == [1, 2, 3, 4, 5])
  }

  @Test func `a drain that goes idle during a take-over is started again for the remaining messages`() {
    let post = Post()
    let place = Place()
    _ = post.push(1)
    _ = post.push(place)
    let taken = post.inbox.takeOut(from: post.worker) { message in
      guard case .job = message else { return false }
      return post.goIdle()
    }
    #expect(taken.mustStart)
    #expect(post.numbers() == [1])
  }
}
