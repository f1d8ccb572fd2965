/// A queued piece of work that is not a job: a function, and a link for the inbox or work queue that holds it.
///
/// It is stored in the object that the work belongs to, so queueing does not allocate: the function finds the object by
/// the item's address. A queued item owns one reference to that object, which the function takes over.
struct WorkItem {
  /// Receives the item's address.
  typealias Function = @convention(c) (_ item: UnsafeMutableRawPointer) -> Void

  let function: Function
  /// Accessed only by the inbox or work queue that holds the item.
  var link: UInt = 0

  init(_ function: @escaping Function) { self.function = function }
}

extension UnsafeMutablePointer<WorkItem> {
  /// Performs the work, and gives up the reference that the item owns.
  func run() { pointee.function(self) }

  /// Whether the item is of the kind that `function` performs.
  // Sound because a C function is its address.
  func isRun(by function: WorkItem.Function) -> Bool {
    unsafeBitCast(pointee.function, to: UInt.self) == unsafeBitCast(function, to: UInt.self)
  }
}

/// A queue of work items, first in, first out.
///
/// It is intrusive, so queueing allocates nothing. The owner of the queue defines its access.
struct WorkQueue {
  private var first: UInt = 0
  private var last: UInt = 0
  private(set) var count = 0
  /// The number of items that have been taken; wraps around.
  private(set) var taken: UInt = 0

  var isEmpty: Bool { first == 0 }
  /// The first item as a word to compare; 0 if there is none.
  var next: UInt { first }

  /// What `taken` will be once all present items have been taken.
  var end: UInt { taken &+ UInt(count) }

  /// Whether the items that were present when `end` was read have been taken.
  func hasTaken(_ end: UInt) -> Bool { Int(bitPattern: taken &- end) >= 0 }

  /// Appends a message.
  ///
  /// The queue takes over the reference that the message owns.
  mutating func append(_ message: Inbox.Message) {
    let word = Inbox.encode(message)
    Inbox.setLink(word, 0)
    if first == 0 { first = word } else { Inbox.setLink(last, word) }
    last = word
    count += 1
  }

  mutating func popFirst() -> Inbox.Message? {
    guard first != 0 else { return nil }
    let word = first
    first = Inbox.link(word)
    count -= 1
    taken &+= 1
    return Inbox.decode(word)
  }
}
