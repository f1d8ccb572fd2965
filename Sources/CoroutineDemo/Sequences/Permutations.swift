#if Demo
import Coroutine

/// Every order of `elements`, one at a time, in place: the recursion is the textbook's, with a yield at its bottom.
func permutations<Element>(of elements: [Element]) -> Generator<[Element], Never, Void> {
  co_sequence { yield in
    var elements = elements
    func permute(from index: Int) throws {
      guard index < elements.count - 1 else {
        try yield(elements)
        return
      }
      for other in index..<elements.count {
        elements.swapAt(index, other)
        try permute(from: index + 1)
        elements.swapAt(index, other)
      }
    }
    try permute(from: 0)
  }
}
#endif
