#if Demo
/// The steps of a job, in order, with what is shown of each.
protocol ProgressStep: CaseIterable, Hashable, Sendable where AllCases: RandomAccessCollection {
  /// One word that begins a line of plain progress.
  var name: String { get }
  /// What is being done: "Fetching the profile".
  var title: String { get }
  /// Whether the progress list shows it. The step that writes to the terminal itself cannot be shown there.
  var isListed: Bool { get }
}
#endif
