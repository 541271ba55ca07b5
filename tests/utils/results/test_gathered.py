"""Lines of several jobs that differ only in numbers are one line, with the number of jobs."""

from utils.results.gathered import gathered


def test_quantities_become_a_range_and_jobs_are_counted():
    said = [(f"job {n}", f"{90 + n} % of the time, {n}.5 GB; stop other work") for n in range(1, 4)]
    assert gathered(said) == ["91 to 93 % of the time, 1.5 to 3.5 GB; stop other work (3 jobs)"]


def test_numbers_of_things_are_listed_and_not_made_a_range():
    assert gathered([("a", "process 77 holds memory"), ("b", "process 5 holds memory")]) == [
        "process 5, 77 holds memory (2 jobs)"
    ]
    many = [("a", f"process {n} holds memory") for n in range(1, 6)]
    assert gathered(many) == ["process 1, 2, 3, ... holds memory (1 job)"]


def test_lines_of_other_words_or_units_stay_apart_in_their_order():
    said = [("a", "swap: 3 GB"), ("b", "cap: 3 W"), ("b", "swap: 3 MB"), ("c", "cap: 3 W")]
    assert gathered(said) == ["swap: 3 GB (1 job)", "cap: 3 W (2 jobs)", "swap: 3 MB (1 job)"]


def test_a_job_that_says_it_twice_counts_once_and_nothing_gives_nothing():
    assert gathered([("a", "x"), ("a", "x")]) == ["x (1 job)"]
    assert gathered([]) == []
