"""What commands of bench/ write into pages of the machine and the commit.

    page_test.py SOURCE_DIR
"""

import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.path.append(str(Path(sys.argv.pop()) / 'bench'))

from page import commit, machine  # noqa: E402


class Machine(unittest.TestCase):
    def test_is_said_in_one_line(self):
        with mock.patch('page.commit', return_value='0123abc-dirty'):
            self.assertRegex(machine(), r'^.+ family \d+ model \d+, \d+ cores, '
                                        r'.*\d{4}-\d\d-\d\d, '
                                        r'commit `0123abc-dirty`$')

    def test_where_there_is_no_repository_the_commit_is_unknown(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(commit(folder), 'unknown')

    @unittest.skipUnless(shutil.which('git'), 'there is no git')
    def test_a_commit_is_dirty_with_other_code(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        root = Path(folder.name)

        def git(*arguments):
            subprocess.run(['git', '-C', root, '-c', 'user.name=n', '-c', 'user.email=e',
                            *arguments], check=True, capture_output=True)

        for name in ('code', 'docs'):
            (root / name).mkdir()
            (root / name / 'file').write_text('before')
        git('init')
        git('add', '.')
        git('commit', '-m', 'first')
        self.assertRegex(commit(root), '^[0-9a-f]+$')
        (root / 'docs' / 'file').write_text('after')
        self.assertRegex(commit(root), '^[0-9a-f]+$')
        (root / 'code' / 'file').write_text('after')
        self.assertRegex(commit(root), '^[0-9a-f]+-dirty$')


if __name__ == '__main__':
    unittest.main()
