"""The error of a study that cannot be run, or of a result that cannot be read."""


class StudyError(ValueError):
    """A study that was asked for wrongly, or a result that is damaged; the command line prints one line."""
